-- gpusage in job_submit.lua: asks gpusaged what a job's GPU request should be; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- Invariants:
-- 1. slurmctld holds its locks while this runs: the whole exchange has one limit, and no file is read.
-- 2. Whatever goes wrong, the job goes through as the user wrote it: everything of ours runs inside pcall.
-- 3. Of an update of a job we change the comment alone, and only where our own task epilog wrote it.
-- 4. In a job's request we set only the fields in SETTABLE and the variables in VARIABLES: all of them or none.
--    In every mode we also empty the variables that we once set ourselves, and add our mark to the admin comment.

local M = { socket = "/run/gpusage/gpusaged.sock", limit_ms = 40, first_part = 0.25, rest_s = 0.05 }

local MAXIMUM_ANSWER_BYTES = 65536
local MAXIMUM_FIELD_BYTES = 8192
local MAXIMUM_CARD_BYTES = 16384
local MAXIMUM_ADMIN_COMMENT_BYTES = 1024 -- slurmctld's limit
local MINIMUM_MARK_BYTES = 32 -- the record's number and the decision
local MAXIMUM_SCRIPT_BYTES = 262144
local MAXIMUM_HEAD_BYTES = 16384 -- of a script: where its lines `#GPUSAGE` stand
local MAXIMUM_DIGESTED_BYTES = 4096
local MAXIMUM_EXPORT_BYTES = 200
local MAXIMUM_LIMIT_MS = 1000
local MAXIMUM_PAUSE_S = 2
local UNSET = { [65534] = true, [65535] = true, [4294967294] = true, [4294967295] = true }
local TEXTS = {
  "comment", "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "tres_bind",
  "tres_freq", "cpus_per_tres", "mem_per_tres", "features", "prefer", "partition",
  "req_nodes", "exc_nodes", "reservation", "qos", "default_qos", "array_inx", "name", "account",
}
local NUMBERS = {
  "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "sockets_per_node", "shared", "ntasks_per_tres", "min_cpus", "pn_min_cpus",
  "cpus_per_task", "min_mem_per_node", "min_mem_per_cpu", "pn_min_tmp_disk", "cores_per_socket", "threads_per_core",
}
local SETTABLE = { "gres", "tres_per_job", "tres_per_socket", "tres_per_task", "tres_bind", "features", "prefer", "exc_nodes" }
local FIELD_OF_ALIAS = { gres = "tres_per_node" } -- gres is another name of tres_per_node that adds the version's own prefix
local VARIABLES = {
  GPUSAGE_DECISION = true, GPUSAGE_THREAD_PERCENT = true, GPUSAGE_RESCUE = true, GPUSAGE_NOTICE = true,
  CUDA_MPS_PINNED_DEVICE_MEM_LIMIT = true, CUDA_MPS_CLIENT_PRIORITY = true,
}
local OUTER_JOB_VARIABLES = {
  "GPUSAGE_DECISION", "GPUSAGE_JOB", "GPUSAGE_DEVICE", "GPUSAGE_THREAD_PERCENT", "GPUSAGE_RESCUE", "GPUSAGE_NOTICE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
  "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_SM_PARTITION", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
}

local DRY_RUN = "SLURM_GPUSAGE_DRY_RUN" -- our filter sets it where --test-only was typed; Slurm does not tell us
-- What else our cli_filter sends. The prefix SLURM_ lets it travel whatever --export says; a client without our filter, or whose
-- Lua cannot set a variable, leaves it out.
local QUIET = "SLURM_GPUSAGE_QUIET" -- where sbatch's output is read by machine
local TRANSPORT_VARIABLES = {
  "SLURM_GPUSAGE_CARD", "GPUSAGE_CARD", "SLURM_GPUSAGE_DEADLINE", "GPUSAGE_DEADLINE", "SLURM_GPUSAGE_COMMENT", DRY_RUN, QUIET,
}

-- JSON: only what the protocol needs ------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\127"] = "\\u007f" }
for byte = 0, 31 do ESCAPES[string.char(byte)] = string.format("\\u%04x", byte) end
local UNESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- Return the length of the well-formed UTF-8 character that begins at byte `i` of `s`, or nil.
local function utf8_length(s, i)
  local a, b = s:byte(i, i + 1)
  local length = (a >= 0xF0 and a <= 0xF4 and 4) or (a >= 0xE0 and a < 0xF0 and 3) or (a >= 0xC2 and a < 0xE0 and 2)
  if not length or i + length - 1 > #s then return nil end
  for k = i + 1, i + length - 1 do
    local byte = s:byte(k)
    if byte < 0x80 or byte > 0xBF then return nil end
  end
  local wrong = (a == 0xE0 and b < 0xA0) or (a == 0xED and b > 0x9F) or (a == 0xF0 and b < 0x90) or (a == 0xF4 and b > 0x8F)
  return not wrong and length or nil
end

-- Return the bytes of `s`, all above 127, with U+FFFD in the place of each that is not UTF-8.
local function with_valid_utf8(s)
  local parts, i = {}, 1
  while i <= #s do
    local length = utf8_length(s, i)
    parts[#parts + 1], i = length and s:sub(i, i + length - 1) or "\\ufffd", i + (length or 1)
  end
  return table.concat(parts)
end

-- Return any bytes as a JSON string; bytes that are not UTF-8 become U+FFFD.
function M.encode_text(s)
  if not s:find('[^]-~ !#-[]') then return '"' .. s .. '"' end -- printable ASCII but for the two escaped ones
  return '"' .. s:gsub('[%c"\\]', ESCAPES):gsub("[\128-\255]+", with_valid_utf8) .. '"'
end

local function utf8_of(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  if code < 0x10000 then
    return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64,
    0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

-- Return the text of the JSON string that begins at byte `i` of `s`, and the byte after it; nil if none begins there.
local function decode_text(s, i)
  if s:sub(i, i) ~= '"' then return nil end
  local parts = {}
  i = i + 1
  while true do
    local stop = s:find('["\\%c]', i)
    if not stop then return nil end
    parts[#parts + 1] = s:sub(i, stop - 1)
    local c, e = s:sub(stop, stop), s:sub(stop + 1, stop + 1)
    if c == '"' then return table.concat(parts), stop + 1 end
    if c ~= "\\" then return nil end
    if e == "u" then
      local high = tonumber(s:match("^%x%x%x%x", stop + 2) or "", 16)
      if not high then return nil end
      i = stop + 6
      if high >= 0xD800 and high <= 0xDBFF then
        local low = tonumber(s:match("^\\u([dD][c-fC-F]%x%x)", i) or "", 16)
        if not low then return nil end
        high, i = 0x10000 + (high - 0xD800) * 1024 + (low - 0xDC00), i + 6
      elseif high >= 0xDC00 and high <= 0xDFFF then
        return nil
      end
      parts[#parts + 1] = utf8_of(high)
    else
      if not UNESCAPES[e] then return nil end
      parts[#parts + 1], i = UNESCAPES[e], stop + 2
    end
  end
end

-- Return the table in `s`, one flat JSON object of texts; nil for anything else.
function M.decode(s)
  local object, i = {}, s:match("^%s*{%s*()")
  if not i then return nil end
  if s:match("^}%s*$", i) then return object end
  while true do
    local key, value
    key, i = decode_text(s, i)
    if not key or object[key] ~= nil then return nil end
    i = s:match("^%s*:%s*()", i)
    if not i then return nil end
    value, i = decode_text(s, i)
    if not value then return nil end
    object[key] = value
    if s:match("^%s*}%s*$", i) then return object end
    i = s:match("^%s*,%s*()", i)
    if not i then return nil end
  end
end

-- The request -----------------------------------------------------------------------------------------------------

local function index(owner, name) return owner[name] end

local function get(owner, name)
  local done, value = pcall(index, owner, name)
  if done then return value end
end

-- Return one of Slurm's numbers as text, without the ".0" of Lua 5.3 and later; return nothing if it is not set.
local function number_text(value)
  if type(value) ~= "number" or value ~= value or value < 0 or value > 2 ^ 53 or UNSET[value] then return "" end
  return string.format("%.0f", value)
end

local function variable(job, name)
  local value = get(get(job, "environment") or {}, name)
  return type(value) == "string" and value or ""
end

-- Return what our cli_filter sent under `name`.
local function from_filter(job, name)
  local value = variable(job, "SLURM_" .. name)
  return value ~= "" and value or variable(job, name)
end

-- Return the variable SLURM_EXPORT_ENV without what our cli_filter added to it.
local function export_without_ours(job)
  local export = variable(job, "SLURM_EXPORT_ENV")
  if #export > MAXIMUM_SCRIPT_BYTES then return export end
  return (export:gsub(",GPUSAGE_CARD=[^,]*", ""):gsub(",GPUSAGE_DEADLINE=[^,]*", ""))
end

-- Return the job's deadline as Slurm reads it, in seconds since 1970: Slurm 22.05 to 26.05 do not show it to job_submit.
local function deadline(job)
  local seconds = from_filter(job, "GPUSAGE_DEADLINE"):match("^%d+$")
  return seconds and "uts=" .. seconds or ""
end

-- Return the option in the job's srun lines that a share cannot carry: --cpus-per-gpu, which cli_filter cannot remove.
function M.incompatible_srun_option(job, script)
  if variable(job, "SLURM_CPUS_PER_GPU") ~= "" then return "cpus-per-gpu" end
  if #script > MAXIMUM_SCRIPT_BYTES then return "unread" end
  local is_present = script:find("--cpus-per-g", 1, true) or script:find("SLURM_CPUS_PER_GPU", 1, true)
  return is_present and "cpus-per-gpu" or ""
end

-- Words in the scripts of pilot jobs, in which programs run tasks of their own. They report a failure to their masters before
-- Slurm knows of it, or outlive it. gpusage_slurm.submission.script has the same words.
local PILOT_WORDS = {
  "submitit.core._submit", "distributed.cli.dask_worker", "dask-worker", "dask worker", "process_worker_pool", ".psij/",
  "nxf_launch", "ray start", "jupyter", "ipengine", "ipcontroller", "wandb agent", "radical.pilot", "flux start",
  "hq worker", "prefect worker", "celery", "work_queue_worker", "torchx",
}

-- Return why the job cannot be requeued unnoticed if it runs out of memory; "" if its task epilog can do so.
function M.why_unrepeatable(job, script)
  if number_text(get(job, "requeue")) == "0" then return "no-requeue" end
  local output, errors = get(job, "std_out"), get(job, "std_err")
  if output == "/dev/null" and (not errors or errors == "" or errors == output) then return "output" end
  if #script > MAXIMUM_SCRIPT_BYTES then return "unread" end
  for _, word in ipairs(PILOT_WORDS) do if script:find(word, 1, true) then return "master" end end
  return ""
end

-- Return the texts of the `#GPUSAGE ...` lines at a script's head, joined by commas. Like #SBATCH lines, they end at the first
-- line that is neither blank nor a comment. It takes time in proportion to the head, whatever stands there: the user wrote it,
-- and slurmctld waits.
function M.gpusage_directives(script)
  script = script:sub(1, MAXIMUM_HEAD_BYTES)
  if not script:find("#GPUSAGE", 1, true) then return "" end
  local words = {}
  for line in script:gmatch("[^\n]+") do
    if not line:find("^%s*#") and line:find("%S") then break end
    local word = line:match("^#GPUSAGE%s+(.*)$")
    word = word and word:reverse():gsub("^[%s,]+", ""):reverse() or ""
    if word ~= "" then words[#words + 1] = word end
  end
  return table.concat(words, ","):sub(1, MAXIMUM_FIELD_BYTES)
end

-- Return two numbers that are equal for equal texts: polynomials of the text, each modulo a prime, as doubles hold them. They
-- protect nothing.
function M.digest(text)
  local one, other = 7, 11
  for i = 1, #text, 64 do
    for _, byte in ipairs({ text:byte(i, i + 63) }) do
      one, other = (one * 65599 + byte) % 2147483647, (other * 31337 + byte) % 4294967291
    end
  end
  return one, other
end

-- Return sixteen digits that are equal for scripts that differ only in numbers, comments and blanks; "" if there is none.
-- It tells which jobs are alike, and is no secret.
function M.script_digest(script)
  if script == "" then return "" end
  local text = script:sub(1, MAXIMUM_DIGESTED_BYTES)
  text = text:gsub("\n[ \t]*#[^\n]*", "\n"):gsub("^#[^\n]*", ""):gsub("%d+", "0"):gsub("%s+", " "):gsub(" $", "")
  local one, other = M.digest(text)
  return string.format("%08.0f", one):sub(-8) .. string.format("%08.0f", other):sub(-8)
end

-- Return the request about `job` as one line, with the members `extra` after its fields. An empty field is left out.
function M.request(job, extra)
  local parts = {}
  local function add(name, text)
    if text ~= "" then parts[#parts + 1] = '"' .. name .. '":' .. M.encode_text(text) end
  end
  for _, name in ipairs(TEXTS) do
    local value = get(job, name)
    add(name, type(value) == "string" and #value <= MAXIMUM_FIELD_BYTES and value or "")
  end
  for _, name in ipairs(NUMBERS) do
    add(name, number_text(get(job, name)))
  end
  local user, script, card = get(job, "user_id"), get(job, "script"), from_filter(job, "GPUSAGE_CARD")
  add("user_id", type(user) == "number" and string.format("%.0f", user) or "")
  script = type(script) == "string" and script or ""
  add("script", script ~= "" and "1" or "0")
  add("script_options", M.incompatible_srun_option(job, script))
  add("script_digest", M.script_digest(script))
  add("unrepeatable", M.why_unrepeatable(job, script))
  add("variable_comment", from_filter(job, "GPUSAGE_COMMENT"):sub(1, MAXIMUM_FIELD_BYTES))
  add("script_comment", M.gpusage_directives(script))
  add("het", number_text(get(job, "het_job_offset")) == "" and "0" or "1")
  add("dry_run", variable(job, DRY_RUN) == "1" and "1" or "0")
  add("shows_model", variable(job, "SLURM_GPUSAGE_LEARN") ~= "" and "1" or "")
  add("card", #card <= MAXIMUM_CARD_BYTES and card or "")
  add("deadline", deadline(job))
  add("export", export_without_ours(job):sub(1, MAXIMUM_EXPORT_BYTES))
  return '{"v":1,"manager":"slurm","fields":{' .. table.concat(parts, ",") .. "}" .. (extra or "") .. "}\n"
end

-- What only slurmctld's side knows: until when an answer is of use, how many jobs got no answer, and why.
local missed = {}

local function count_missed(why)
  missed[why] = (missed[why] or 0) + 1
end

-- Return `name` and `seconds` as a member of a JSON object.
local function time_member(name, seconds)
  return (string.format(',"%s":%.6f', name, seconds):gsub("(%d),(%d+)$", "%1.%2")) -- a locale may write a comma
end

function M.extra_members(until_s, first_by_s)
  local counts = {}
  for why, count in pairs(missed) do counts[#counts + 1] = string.format('"%s":%.0f', why, count) end
  local text = time_member("until_s", until_s) .. time_member("first_by_s", first_by_s)
  return text .. (#counts > 0 and ',"missed":{' .. table.concat(counts, ",") .. "}" or "")
end

-- The exchange ----------------------------------------------------------------------------------------------------

local function open_socket(unix)
  local make = type(unix) == "table" and (unix.stream or unix.tcp) or unix -- LuaSocket 3.0 returned the function itself
  return make()
end

local function limit_s()
  return math.min(M.limit_ms, MAXIMUM_LIMIT_MS) / 1000
end

local TIMED_OUT = "no answer within "

-- The connection of the last answer, reused so that the next request need not wait for an accept. gpusaged closes it after
-- some idle seconds, and any error closes it here: no answer can be read as that of another request.
local idle_connection

-- Return gpusaged's line for `request`, or nil and why not. Its first byte comes by `first_by`, all of it by `deadline`.
function M.exchange(request, first_by, deadline)
  local socket, unix = require("socket"), require("socket.unix")
  local limit, connection = limit_s()

  local function timed_out(time)
    return string.format("%s%.0f ms", TIMED_OUT, M.limit_ms * (time == deadline and 1 or M.first_part))
  end

  local function wait_until(time)
    local seconds = math.min(time - socket.gettime(), limit) -- the clock may be set back meanwhile
    if seconds <= 0 then error(timed_out(time), 0) end
    connection:settimeout(seconds, "b")
    connection:settimeout(seconds, "t")
  end

  local function receive()
    local parts, size, time = {}, 0, first_by
    while true do
      -- Wait for one byte, then take what has arrived: this bounds the answer's size and each wait.
      wait_until(time)
      local first, problem = connection:receive(1)
      if not first then error(problem == "timeout" and timed_out(time) or problem, 0) end
      time = deadline -- somebody is there
      connection:settimeout(0, "b")
      connection:settimeout(0, "t")
      local rest, _, partial = connection:receive(MAXIMUM_ANSWER_BYTES)
      local chunk = first .. (rest or partial or "")
      local stop = chunk:find("\n", 1, true)
      parts[#parts + 1], size = stop and chunk:sub(1, stop - 1) or chunk, size + #chunk
      if size > MAXIMUM_ANSWER_BYTES then error("an answer above " .. MAXIMUM_ANSWER_BYTES .. " bytes", 0) end
      if stop then return table.concat(parts), stop == #chunk end
    end
  end

  local function talk()
    if not connection then
      connection = assert(open_socket(unix))
      wait_until(first_by)
      assert(connection:connect(M.socket))
    end
    wait_until(first_by)
    assert(connection:send(request))
    return receive()
  end

  connection, idle_connection = idle_connection, nil
  local was_reused = connection ~= nil
  local done, line, is_all = pcall(talk)
  if not done and was_reused and not tostring(line):find(TIMED_OUT, 1, true) then -- the daemon had closed it meanwhile
    pcall(connection.close, connection)
    connection = nil
    done, line, is_all = pcall(talk)
  end
  if done and is_all then
    idle_connection = connection
  elseif connection then
    pcall(connection.close, connection)
  end
  if done then return line end
  return nil, (tostring(line):gsub("^[^\n]-%.lua:%d+: ", "")) -- people read it
end

-- The answer ------------------------------------------------------------------------------------------------------

-- Set everything that `answer` names, or nothing.
function M.apply(job, answer)
  local undo = {}
  local function set(owner, name, value, earlier, into)
    undo[#undo + 1] = function() owner[into or name] = earlier end
    owner[name] = value
  end
  local function all()
    for name in pairs(VARIABLES) do
      local value = answer["env." .. name]
      if value then set(job.environment, name, value, variable(job, name)) end
    end
    for _, name in ipairs(SETTABLE) do
      local value, into = answer["set." .. name], FIELD_OF_ALIAS[name] or name
      if value then set(job, name, value, get(job, into) or "", into) end
    end
  end
  local done, problem = pcall(all)
  if done then return true end
  for i = #undo, 1, -1 do pcall(undo[i]) end
  return nil, tostring(problem)
end

-- Return `earlier`, the site's own admin comment, followed by `mark`. Only the mark is ever shortened.
function M.admin_comment_with(earlier, mark)
  local room = MAXIMUM_ADMIN_COMMENT_BYTES - #earlier - (earlier == "" and 0 or 2)
  if #mark > room then mark = room >= MINIMUM_MARK_BYTES and mark:sub(1, room - 3) .. "..." or nil end
  if not mark then return earlier end
  return earlier == "" and mark or earlier .. "; " .. mark
end

-- Empty the variables that an enclosing job of ours, or the card's transport, left here: they would mislead this job.
function M.clear_variables(job)
  if variable(job, "GPUSAGE_DECISION") ~= "" then
    for _, name in ipairs(OUTER_JOB_VARIABLES) do
      if variable(job, name) ~= "" then job.environment[name] = "" end
    end
  end
  for _, name in ipairs(TRANSPORT_VARIABLES) do
    if variable(job, name) ~= "" then job.environment[name] = "" end
  end
  local plain = export_without_ours(job)
  if plain ~= variable(job, "SLURM_EXPORT_ENV") then job.environment["SLURM_EXPORT_ENV"] = plain end
end

-- slurmctld holds its locks while it waits, and jobs queue up behind one lock. So a daemon must show that it is there
-- within `first_part` of the limit: by its answer, or by a space where it has to think, which it may then do until the
-- whole limit. After a silence we pause before we ask again, so that those who queue up do not wait for the same, and
-- after each in a row twice as long. A daemon that is absent costs no time, so no pause.
local pause = { seconds = 0, over = nil }

local function is_paused(now)
  return pause.over and now < pause.over and pause.over - now <= MAXIMUM_PAUSE_S -- the clock may have been set back
end

-- Pause after a timeout, and return a clause about it for the log.
local function pause_after_timeout(now)
  pause.seconds = math.min(math.max(pause.seconds * 2, M.rest_s), MAXIMUM_PAUSE_S)
  pause.over = now + pause.seconds
  return string.format("; it is not asked again for %g s", pause.seconds)
end

local logged_once = {}

local function log(text, once)
  if once and logged_once[text] then return end
  logged_once[text] = once or nil
  slurm.log_info("%s", "gpusage: " .. text)
end

-- Append the mark to the admin comment of `job`: it names the decision, and why it was made.
local function set_mark(job, mark)
  local earlier = get(job, "admin_comment") or ""
  local marked = M.admin_comment_with(earlier, mark)
  if marked ~= earlier then job.admin_comment = marked end
end

-- Return whether `job` asks for a GPU in any of the four places; nothing else is asked about.
function M.requests_gpu(job)
  for _, name in ipairs({ "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }) do
    local value = get(job, name)
    if type(value) == "string" and value:find("gpu", 1, true) then return true end
  end
  return false
end

-- What the user reads of a job without an answer: a daemon that is busy may be in time for the next one.
local PROBLEMS = {
  silent = "gpusaged did not answer in time", rest = "gpusaged did not answer in time",
  unreachable = "gpusaged cannot be reached", strange = "gpusaged's answer cannot be used",
  unasked = "gpusaged was not asked",
}

-- Return the daemon's answer about `job` as a table, or nil, why there is none, and which of PROBLEMS that is.
function M.ask(job)
  local now = require("socket").gettime
  if is_paused(now()) then
    count_missed("rest")
    return nil, "gpusaged is not asked for a moment, because it did not answer in time", "rest"
  end
  local begun = now()
  local first_by, deadline = begun + limit_s() * M.first_part, begun + limit_s()
  local done, line, problem = pcall(M.exchange, M.request(job, M.extra_members(deadline, first_by)), first_by, deadline)
  problem = not done and line or problem
  if done and line then
    missed = {} -- whoever answered has counted them
    pause.seconds, pause.over = 0, nil
    local answer = M.decode(line)
    if answer and answer.v == "1" then return answer end
    count_missed("strange")
    return nil, "the answer is not of the protocol", "strange"
  end
  problem = "gpusaged at " .. M.socket .. ": " .. tostring(problem)
  if problem:find(TIMED_OUT, 1, true) or problem:find("timeout", 1, true) then
    count_missed("silent")
    return nil, problem .. pause_after_timeout(now()), "silent"
  end
  count_missed("unreachable")
  return nil, problem, "unreachable"
end

-- Ask about `job` and apply the answer. Return the job's mark, and whether the daemon wrote it: a mark of our own has no
-- record number.
local function decide(job)
  local done, answer, problem, kind = pcall(M.ask, job)
  local is_quiet, named = variable(job, QUIET) == "1", from_filter(job, "GPUSAGE_CARD") ~= ""
  pcall(M.clear_variables, job)
  local applied, reason = nil, done and problem or answer
  if done and answer then applied, reason = M.apply(job, answer) end
  if not applied then
    log("job left as it is: " .. tostring(reason))
    local problem_text = PROBLEMS[kind or done and "strange" or "unasked"]
    local notice = "gpusage: " .. problem_text .. "; the request stays as it is"
    if named and not is_quiet then slurm.log_user("%s", notice) end
    return "gpusage KEEP | " .. tostring(reason):gsub("[^ -~]", "?"), false
  end
  if answer.message and answer.message ~= "" and not is_quiet then slurm.log_user("%s", "gpusage: " .. answer.message) end
  local mark = (answer.mark or ""):gsub("[^ -~]", "?")
  if mark == "" then return answer.overdue and "gpusage KEEP | gpusaged did not come to it in time", false end
  log("uid " .. number_text(get(job, "user_id")) .. ": " .. mark:gsub("^gpusage ", ""))
  return mark, true
end

-- Ask about `job` and apply the answer. Never fails.
function M.submit(job)
  pcall(function()
    if not M.requests_gpu(job) then return pcall(M.clear_variables, job) end
    if not (pcall(require, "socket") and pcall(require, "socket.unix")) then
      pcall(M.clear_variables, job)
      return log("LuaSocket is missing, so no job is changed; install lua-socket for slurmctld", true)
    end
    local named = from_filter(job, "GPUSAGE_CARD") ~= "" -- it names a model and did not opt out
    local mark, decided = decide(job)
    if mark and (decided or named) then pcall(set_mark, job, mark) end
  end)
end

-- Our task epilog appends this to the comment of a job that failed in its share, while slurmctld still has it running.
local FAILED = "[failed in its share, says gpusage]"

-- Tell gpusaged at once that the job of `user` with this record number failed; nobody waits for an answer. One that lets
-- us wait is followed by a pause, as after a request.
function M.send_failure(number, user)
  local now, unix = require("socket").gettime, require("socket.unix")
  local connection = assert(open_socket(unix))
  connection:settimeout(limit_s() * M.first_part, "t")
  local done, problem = connection:connect(M.socket)
  if done then
    done, problem = connection:send('{"v":1,"op":"failure","number":"' .. number .. '","user":"' .. number_text(user) .. '"}\n')
  end
  pcall(connection.close, connection)
  if not done and tostring(problem):find("timeout", 1, true) then pause_after_timeout(now()) end
end

-- Remove our epilog's note from an update of a job's comment, and report it to gpusaged. The number comes from the mark, not
-- from the user. slurmctld calls this before it checks whose job it is: only a note of the job's own user counts.
function M.modify(job, record, submitter)
  local comment = get(job, "comment")
  if type(comment) ~= "string" or comment:sub(-#FAILED) ~= FAILED then return end
  if submitter == nil or get(record, "user_id") ~= submitter then return end
  job.comment = (comment:sub(1, -#FAILED - 1):gsub(" $", ""))
  local mark = get(record, "admin_comment")
  local number = type(mark) == "string" and mark:match("gpusage (" .. ("%x"):rep(12) .. ") ")
  if number and not is_paused(require("socket").gettime()) then M.send_failure(number, submitter) end
end

-- Run after the site's own slurm_job_submit; its refusals and its errors stay as they are.
function M.wrap(settings)
  for name, value in pairs(settings or {}) do M[name] = value end
  if M.wrapped then return end
  M.wrapped = true
  local own = slurm_job_submit
  function slurm_job_submit(job, partitions, submitter)
    local verdict = slurm.SUCCESS
    if own then verdict = own(job, partitions, submitter) end
    if verdict == nil or verdict == slurm.SUCCESS then M.submit(job) end
    return verdict
  end
  local own_modify = slurm_job_modify
  function slurm_job_modify(job, record, partitions, submitter)
    local verdict = slurm.SUCCESS
    if own_modify then verdict = own_modify(job, record, partitions, submitter) end
    if verdict == nil or verdict == slurm.SUCCESS then pcall(M.modify, job, record, submitter) end
    return verdict
  end
end

return M

-- gpusage in job_submit.lua: asks gpusaged what a job's GPU request should be; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- Invariants:
-- 1. slurmctld holds its locks while this runs: the whole exchange has one limit, and no file is read.
-- 2. Whatever goes wrong, the job goes through as the user wrote it: everything of ours runs inside pcall.
-- 3. In a job's request we set only the fields in SETTABLE and the variables in VARIABLES: all of them or none.
--    In every mode we also empty the variables that we once set ourselves, and add our mark to the admin comment.

local M = { socket = "/run/gpusage/gpusaged.sock", limit_ms = 40, rest_s = 0.5, silent_before_rest = 5 }

local MAXIMUM_ANSWER_BYTES = 65536
local MAXIMUM_FIELD_BYTES = 8192
local MAXIMUM_CARD_BYTES = 16384
local MAXIMUM_ADMIN_COMMENT_BYTES = 1024 -- slurmctld's limit
local SHORTEST_MARK_BYTES = 32 -- the record's number and the decision
local MAXIMUM_SCRIPT_BYTES = 262144
local MAXIMUM_DIGESTED_BYTES = 4096
local MAXIMUM_EXPORT_BYTES = 200
local MAXIMUM_LIMIT_MS = 1000
local MAXIMUM_REST_S = 2
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
local READ_AS = { gres = "tres_per_node" } -- gres is another name of tres_per_node that adds the version's own prefix
local VARIABLES = {
  GPUSAGE_DECISION = true, GPUSAGE_THREAD_PERCENT = true, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT = true, CUDA_MPS_CLIENT_PRIORITY = true,
}
local INHERITED = {
  "GPUSAGE_DECISION", "GPUSAGE_JOB", "GPUSAGE_DEVICE", "GPUSAGE_THREAD_PERCENT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
  "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_SM_PARTITION", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
}

local DRY_RUN = "SLURM_GPUSAGE_DRY_RUN" -- our filter sets it where --test-only was typed; Slurm does not tell us
-- What else our cli_filter sends. The prefix SLURM_ lets it travel whatever --export says; a client without our filter, or whose
-- Lua cannot set a variable, leaves it out.
local SENT = { "SLURM_GPUSAGE_CARD", "GPUSAGE_CARD", "SLURM_GPUSAGE_DEADLINE", "GPUSAGE_DEADLINE", DRY_RUN }

-- JSON: only what the protocol needs ------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\" }
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

-- Return any bytes as a JSON string; bytes that are not UTF-8 become U+FFFD.
function M.encode_text(s)
  if not s:find('[^]-~ !#-[]') then return '"' .. s .. '"' end -- printable ASCII but for the two escaped ones
  local parts, i = {}, 1
  while i <= #s do
    local c, length = s:sub(i, i), 1
    local byte = c:byte()
    if byte < 0x20 or byte == 0x7F then
      c = string.format("\\u%04x", byte)
    elseif byte >= 0x80 then
      length = utf8_length(s, i)
      c = length and s:sub(i, i + length - 1) or "\\ufffd"
    else
      c = ESCAPES[c] or c
    end
    parts[#parts + 1], i = c, i + (length or 1)
  end
  return '"' .. table.concat(parts) .. '"'
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

-- The question ----------------------------------------------------------------------------------------------------

local function read(owner, name)
  local done, value = pcall(function() return owner[name] end)
  if done then return value end
end

-- Return one of Slurm's numbers as text, without the ".0" of Lua 5.3 and later; return nothing if it is not set.
local function number_text(value)
  if type(value) ~= "number" or value ~= value or value < 0 or value > 2 ^ 53 or UNSET[value] then return "" end
  return string.format("%.0f", value)
end

local function variable(job, name)
  local value = read(read(job, "environment") or {}, name)
  return type(value) == "string" and value or ""
end

-- Return what our cli_filter sent under `name`.
local function sent(job, name)
  local value = variable(job, "SLURM_" .. name)
  return value ~= "" and value or variable(job, name)
end

-- Return the variable SLURM_EXPORT_ENV without what our cli_filter added to it.
local function own_export(job)
  return (variable(job, "SLURM_EXPORT_ENV"):gsub(",GPUSAGE_CARD=[^,]*", ""):gsub(",GPUSAGE_DEADLINE=[^,]*", ""))
end

-- Return the job's deadline as Slurm reads it, in seconds since 1970: Slurm 22.05 to 26.05 do not show it to job_submit.
local function deadline(job)
  local seconds = sent(job, "GPUSAGE_DEADLINE"):match("^%d+$")
  return seconds and "uts=" .. seconds or ""
end

-- Return the option in the job's srun lines that a share cannot carry: --cpus-per-gpu, which cli_filter cannot remove.
function M.script_options(job, script)
  if variable(job, "SLURM_CPUS_PER_GPU") ~= "" then return "cpus-per-gpu" end
  if #script > MAXIMUM_SCRIPT_BYTES then return "unread" end
  local found = script:find("--cpus-per-g", 1, true) or script:find("SLURM_CPUS_PER_GPU", 1, true)
  return found and "cpus-per-gpu" or ""
end

-- Return sixteen digits that are equal for scripts that differ only in numbers, comments and blanks; "" if there is none.
-- It tells which jobs are alike, and is no secret: two polynomials of the text, each modulo a prime, as doubles hold them.
function M.script_digest(script)
  if script == "" then return "" end
  local text = script:sub(1, MAXIMUM_DIGESTED_BYTES)
  text = text:gsub("\n[ \t]*#[^\n]*", "\n"):gsub("^#[^\n]*", ""):gsub("%d+", "0"):gsub("%s+", " "):gsub(" $", "")
  local one, other = 7, 11
  for i = 1, #text, 64 do
    for _, byte in ipairs({ text:byte(i, i + 63) }) do
      one, other = (one * 65599 + byte) % 2147483647, (other * 31337 + byte) % 4294967291
    end
  end
  return string.format("%08.0f", one):sub(-8) .. string.format("%08.0f", other):sub(-8)
end

-- Return the daemon's question about `job` as one line, with `more` after its fields.
function M.question(job, more)
  local parts = {}
  local function add(name, text)
    parts[#parts + 1] = '"' .. name .. '":' .. M.encode_text(text)
  end
  for _, name in ipairs(TEXTS) do
    local value = read(job, name)
    add(name, type(value) == "string" and #value <= MAXIMUM_FIELD_BYTES and value or "")
  end
  for _, name in ipairs(NUMBERS) do
    add(name, number_text(read(job, name)))
  end
  local user, script, card = read(job, "user_id"), read(job, "script"), sent(job, "GPUSAGE_CARD")
  add("user_id", type(user) == "number" and string.format("%.0f", user) or "")
  script = type(script) == "string" and script or ""
  add("script", script ~= "" and "1" or "0")
  add("script_options", M.script_options(job, script))
  add("script_digest", M.script_digest(script))
  add("het", number_text(read(job, "het_job_offset")) == "" and "0" or "1")
  add("dry_run", variable(job, DRY_RUN) == "1" and "1" or "0")
  add("card", #card <= MAXIMUM_CARD_BYTES and card or "")
  add("deadline", deadline(job))
  add("export", own_export(job):sub(1, MAXIMUM_EXPORT_BYTES))
  return '{"v":1,"manager":"slurm","fields":{' .. table.concat(parts, ",") .. "}" .. (more or "") .. "}\n"
end

-- What only we can tell the daemon: until when an answer is of use, how many jobs got no answer, and why.
local missed = {}

local function miss(why)
  missed[why] = (missed[why] or 0) + 1
end

function M.more(until_s)
  local counts = {}
  for why, count in pairs(missed) do counts[#counts + 1] = string.format('"%s":%.0f', why, count) end
  local text = string.format(',"until_s":%.6f', until_s):gsub("(%d),(%d+)$", "%1.%2") -- a locale may write a comma
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

-- Return the daemon's line for `question`, or nil and why not, by `deadline`.
function M.exchange(question, deadline)
  local socket, unix, limit = require("socket"), require("socket.unix"), limit_s()
  local connection = assert(open_socket(unix))

  local function left()
    local seconds = math.min(deadline - socket.gettime(), limit) -- the clock may be set back meanwhile
    if seconds <= 0 then error("no answer within " .. M.limit_ms .. " ms", 0) end
    connection:settimeout(seconds, "b")
    connection:settimeout(seconds, "t")
  end

  local function talk()
    left()
    assert(connection:connect(M.socket))
    left()
    assert(connection:send(question))
    local parts, size = {}, 0
    while true do
      -- Wait for one byte, then take what has arrived: this bounds the answer's size and each wait.
      left()
      local first, problem = connection:receive(1)
      if not first then error(problem == "timeout" and "no answer within " .. M.limit_ms .. " ms" or problem, 0) end
      connection:settimeout(0, "b")
      connection:settimeout(0, "t")
      local rest, _, partial = connection:receive(MAXIMUM_ANSWER_BYTES)
      local chunk = first .. (rest or partial or "")
      local stop = chunk:find("\n", 1, true)
      parts[#parts + 1], size = stop and chunk:sub(1, stop - 1) or chunk, size + #chunk
      if size > MAXIMUM_ANSWER_BYTES then error("an answer above " .. MAXIMUM_ANSWER_BYTES .. " bytes", 0) end
      if stop then return table.concat(parts) end
    end
  end

  local done, line = pcall(talk)
  pcall(connection.close, connection)
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
      local value, into = answer["set." .. name], READ_AS[name] or name
      if value then set(job, name, value, read(job, into) or "", into) end
    end
  end
  local done, problem = pcall(all)
  if done then return true end
  for i = #undo, 1, -1 do pcall(undo[i]) end
  return nil, tostring(problem)
end

-- Return `earlier`, the site's own admin comment, followed by `mark`. Only the mark is ever shortened.
function M.marked(earlier, mark)
  local room = MAXIMUM_ADMIN_COMMENT_BYTES - #earlier - (earlier == "" and 0 or 2)
  if #mark > room then mark = room >= SHORTEST_MARK_BYTES and mark:sub(1, room - 3) .. "..." or nil end
  if not mark then return earlier end
  return earlier == "" and mark or earlier .. "; " .. mark
end

-- Empty the variables that an enclosing job of ours, or the card's transport, left here: they would mislead this job.
function M.clean(job)
  if variable(job, "GPUSAGE_DECISION") ~= "" then
    for _, name in ipairs(INHERITED) do
      if variable(job, name) ~= "" then job.environment[name] = "" end
    end
  end
  for _, name in ipairs(SENT) do
    if variable(job, name) ~= "" then job.environment[name] = "" end
  end
  local plain = own_export(job)
  if plain ~= variable(job, "SLURM_EXPORT_ENV") then job.environment["SLURM_EXPORT_ENV"] = plain end
end

-- If the daemon was silent several times in a row, we pause before we ask again, twice as long each time: slurmctld
-- holds its locks while it waits, and jobs queue up behind one lock. A daemon that is absent costs no time, so no pause.
local rest = { silent = 0, seconds = 0, over = nil }

local function resting(now)
  return rest.over and now < rest.over and rest.over - now <= MAXIMUM_REST_S -- the clock may have been set back
end

-- Return what follows from a silence, for the log.
local function silence(now)
  rest.silent = rest.silent + 1
  if rest.silent < M.silent_before_rest then return "" end
  rest.seconds = math.min(math.max(rest.seconds * 2, M.rest_s), MAXIMUM_REST_S)
  rest.over = now + rest.seconds
  return string.format("; it is not asked again for %g s", rest.seconds)
end

local told_once = {}

local function log(text, once)
  if once and told_once[text] then return end
  told_once[text] = once or nil
  slurm.log_info("%s", "gpusage: " .. text)
end

-- Put the mark on `job`: it says what became of the request, and why.
local function leave_mark(job, mark)
  local earlier = read(job, "admin_comment") or ""
  local marked = M.marked(earlier, mark)
  if marked ~= earlier then job.admin_comment = marked end
end

-- Tell whether `job` asks for a GPU in any of the four places; nothing else is asked about.
function M.concerns(job)
  for _, name in ipairs({ "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }) do
    local value = read(job, name)
    if type(value) == "string" and value:find("gpu", 1, true) then return true end
  end
  return false
end

-- Return the daemon's answer about `job` as a table, or nil and why there is none.
function M.ask(job)
  local now = require("socket").gettime
  if resting(now()) then
    miss("rest")
    return nil, "gpusaged is not asked for a moment, because it did not answer in time"
  end
  local deadline = now() + limit_s()
  local asked, line, problem = pcall(M.exchange, M.question(job, M.more(deadline)), deadline)
  problem = not asked and line or problem
  if asked and line then
    missed = {} -- whoever answered has counted them
    rest.silent, rest.seconds, rest.over = 0, 0, nil
    local answer = M.decode(line)
    if answer and answer.v == "1" then return answer end
    miss("strange")
    return nil, "the answer is not of the protocol"
  end
  problem = "gpusaged at " .. M.socket .. ": " .. tostring(problem)
  if problem:find("no answer within", 1, true) or problem:find("timeout", 1, true) then
    miss("silent")
    return nil, problem .. silence(now())
  end
  miss("unreachable")
  return nil, problem
end

-- Ask about `job` and apply the answer. Return the job's mark, and whether the daemon wrote it: a mark of our own has no
-- record number.
local function handled(job)
  local asked, answer, problem = pcall(M.ask, job)
  pcall(M.clean, job)
  local applied, reason = nil, asked and problem or answer
  if asked and answer then applied, reason = M.apply(job, answer) end
  if not applied then
    log("job left as it is: " .. tostring(reason))
    return "gpusage KEEP | " .. tostring(reason):gsub("[^ -~]", "?"), false
  end
  if answer.message and answer.message ~= "" then slurm.log_user("%s", "gpusage: " .. answer.message) end
  local mark = (answer.mark or ""):gsub("[^ -~]", "?")
  if mark == "" then return answer.overdue and "gpusage KEEP | gpusaged did not come to it in time", false end
  log("uid " .. number_text(read(job, "user_id")) .. ": " .. mark:gsub("^gpusage ", ""))
  return mark, true
end

-- Ask about `job` and apply the answer. Never fails.
function M.submit(job)
  pcall(function()
    if not M.concerns(job) then return pcall(M.clean, job) end
    if not (pcall(require, "socket") and pcall(require, "socket.unix")) then
      pcall(M.clean, job)
      return log("LuaSocket is missing, so no job is changed; install lua-socket for slurmctld", true)
    end
    local named = sent(job, "GPUSAGE_CARD") ~= "" -- it names a model and did not opt out
    local mark, decided = handled(job)
    if mark and (decided or named) then pcall(leave_mark, job, mark) end
  end)
end

-- Run after the site's own slurm_job_submit. Its word still counts: its refusals and its errors stay as they are.
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
  if not slurm_job_modify then
    function slurm_job_modify() return slurm.SUCCESS end
  end
end

return M

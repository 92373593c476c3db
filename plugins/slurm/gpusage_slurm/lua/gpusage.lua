-- gpusage in job_submit.lua: asks gpusaged what a job's GPU request should be; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- Invariants:
-- 1. slurmctld holds its locks while this runs: the whole exchange has one limit, and no file is read.
-- 2. Whatever goes wrong, the job goes through as the user wrote it: everything of ours runs inside pcall.
-- 3. Of an update of a job we change the comment alone, and only where our own task epilog wrote it.
-- 4. In a job's request we set only the fields in SETTABLE and the variables in VARIABLES: all of them or none.
--    In every mode we also empty the variables that we once set ourselves, and add our mark to the admin comment.

local R = require("gpusage_request")

local M = { socket = "/run/gpusage/gpusaged.sock", limit_ms = 40, first_part = 0.25, rest_s = 0.05 }

local MAXIMUM_ANSWER_BYTES = 65536
local MAXIMUM_ADMIN_COMMENT_BYTES = 1024 -- slurmctld's limit
local MINIMUM_MARK_BYTES = 32 -- the record's number and the decision
local MAXIMUM_LIMIT_MS = 1000
local MAXIMUM_PAUSE_S = 2
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

-- What else our cli_filter sends. The prefix SLURM_ lets it travel whatever --export says; a client without our filter, or whose
-- Lua cannot set a variable, leaves it out.
local QUIET = "SLURM_GPUSAGE_QUIET" -- where sbatch's output is read by machine
local TRANSPORT_VARIABLES = {
  "SLURM_GPUSAGE_CARD", "GPUSAGE_CARD", "SLURM_GPUSAGE_DEADLINE", "GPUSAGE_DEADLINE", "SLURM_GPUSAGE_COMMENT", R.dry_run_variable, QUIET,
}
local get, variable, number_text, from_filter = R.get, R.variable, R.number_text, R.from_filter

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
  local plain = R.export_without_ours(job)
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
  local done, line, problem = pcall(M.exchange, R.request(job, M.extra_members(deadline, first_by)), first_by, deadline)
  problem = not done and line or problem
  if done and line then
    missed = {} -- whoever answered has counted them
    pause.seconds, pause.over = 0, nil
    local answer = R.decode(line)
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

-- Return whether `record` is a job that we gave a share, and `submitter` its user.
function M.is_own_share(record, submitter)
  local mark = get(record, "admin_comment")
  return type(mark) == "string" and mark:find(" REWRITE .*mps:") and submitter ~= nil and get(record, "user_id") == submitter
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
    if verdict == nil or verdict == slurm.SUCCESS then
      pcall(M.modify, job, record, submitter)
    elseif get(job, "tres_per_node") and M.is_own_share(record, submitter) then
      count_missed("refused") -- so a job that runs out of its share's memory could not run again
    end
    return verdict
  end
end

return M

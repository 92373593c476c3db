-- gpusage in cli_filter.lua: runs as the user inside sbatch and srun; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- sbatch: lets `gpusage job-card` read the model that the comment names, and puts the card into the job's environment.
-- If the comment names no model, earlier runs of the same script may decide (gpusage/capture/on_start).
-- srun inside a job that holds a share instead of a GPU: asks for the share when the script asks for the GPU.
-- Whatever goes wrong, the command goes on as the user wrote it.

-- `names` are how models are named here, such as *.onnx: gpusage's own and those of plugins, as the installer writes them.
local M = { command = "gpusage", limit_s = 2, capture = "opt-in", names = {} }

local MAXIMUM_CARD_BYTES = 16384
local MAXIMUM_COMMENT_BYTES = 1024
local MAXIMUM_HEAD_BYTES = 16384 -- of a script, as in gpusage_request.lua
local GPU_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task" }
local NO_VALUE = "65534" -- Slurm's NO_VAL16, which a number of tasks per GPU of 22.05, 24.11 and 26.05 takes back

local function read(options, name)
  local done, value = pcall(function() return options[name] end)
  return done and type(value) == "string" and value or ""
end

-- Return whether the option `name`, a text or a number, was given.
local function has_option(options, name)
  local value = read(options, name)
  return value ~= "" and value ~= "0" and value ~= "-2" -- Slurm's NO_VAL as a signed number
end

-- Set a variable of this command, from which sbatch and its like take the job's. Without luaposix nobody can.
local function set_variable(name, value)
  local is_installed, stdlib = pcall(require, "posix.stdlib")
  return is_installed and pcall(stdlib.setenv, name, value)
end

-- Return whether `comment` may name a model or opt out; gpusage_hooks.comment parses it. Anything else must start no Python:
-- most comments belong to a site's own tools.
function M.may_name_model(comment)
  if comment:lower():find("gpusage", 1, true) then return true end
  local words = comment:match("^%s*(.-)%s*$"):gsub(",", ";") .. ";"
  if words:find("^model=") or words:find(";%s*model=") then return true end
  local first = words:match("^(%S-);") or "" -- one that blanks follow begins a sentence
  if first:find("^%w+=") then return false end -- a setting of somebody's
  for _, name in ipairs(M.names) do
    local pattern = name:gsub("[%-%.%+%[%]%(%)%$%^%%]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".")
    if first:find("^" .. pattern .. "$") then return true end
  end
  return false
end

-- Return the texts of the `#GPUSAGE ...` lines at a script's head, as job_submit reads them. Most scripts have none, and load
-- no second module.
local function gpusage_directives(script)
  return script:find("#GPUSAGE", 1, true) and require("gpusage_request").gpusage_directives(script) or ""
end

-- Return whether `path` is a plain file, because to open a FIFO would wait for a writer; with `kind` "d", whether it is a folder.
local function is_there(path, kind)
  local is_installed, stat = pcall(require, "posix.sys.stat")
  if not is_installed then
    local status = os.execute("test -" .. (kind or "f") .. " " .. M.quoted(path)) -- true since Lua 5.2, 0 before
    return status == true or status == 0
  end
  local status = stat.stat(path)
  return status ~= nil and stat[kind and "S_ISDIR" or "S_ISREG"](status.st_mode) ~= 0
end

-- Return the words of the command line from the script on, or an empty table.
local function script_words(options)
  local done, argv = pcall(function() return options["argv"] end)
  if not done or type(argv) ~= "table" then return {} end
  local words = { argv[0] }
  for _, word in ipairs(argv) do words[#words + 1] = word end
  return words
end

-- Return the head of the script that sbatch was called with, or "": it may come by a pipe, which only sbatch may read.
local function script_head(options)
  local path = script_words(options)[1]
  local is_read = type(path) == "string" and read(options, "wrap") == "" and is_there(path)
  local file = is_read and io.open(path, "r") or nil
  if not file then return "" end
  local text = file:read(MAXIMUM_HEAD_BYTES) or ""
  file:close()
  return text
end

-- Return the value of the key learn in `text`: true, false, or nil without one.
local function learn_switch(text)
  local word = ("," .. text:lower():gsub("[;:%s]", ",") .. ","):match(",learn=(%w+),")
  if word then return word == "on" or word == "yes" or word == "true" end
end

-- Return whether `text` has the key learn and nothing else for us, as gpusage_hooks.comment does.
local function is_only_learn(text)
  local ours = text:lower():match("gpusage:(.*)$") or text:lower()
  return ours:match("^%s*learn=%w+%s*$") or ours:match("^%s*learn=%w+%s*;")
end

-- Return the user's text that may name a model: the comment, else GPUSAGE_COMMENT, else the script's #GPUSAGE lines, else nil.
function M.model_request(options, script)
  local comment = read(options, "comment")
  if M.may_name_model(comment) and not is_only_learn(comment) then return comment end
  local variable = os.getenv("GPUSAGE_COMMENT") or ""
  if M.may_name_model(variable) and not is_only_learn(variable) then
    set_variable("SLURM_GPUSAGE_COMMENT", variable) -- it comes along whatever --export says
    return variable
  end
  local words = gpusage_directives(script)
  return words ~= "" and not is_only_learn(words) and words or nil
end

-- Return the folder of what runs of this script and its arguments show, or nil if no run may show it.
function M.run_record(options, script)
  local wrapped = read(options, "wrap")
  local text = wrapped ~= "" and wrapped or script
  if M.capture == "off" or text == "" or #text >= MAXIMUM_HEAD_BYTES then return nil end
  local learns = M.capture == "all"
  for _, words in ipairs({ gpusage_directives(text), os.getenv("GPUSAGE_COMMENT") or "", read(options, "comment") }) do
    local value = learn_switch(words)
    if value ~= nil then learns = value end
  end
  local cache, home = os.getenv("XDG_CACHE_HOME") or "", os.getenv("HOME") or ""
  local folder = cache:find("^/") and cache or home .. "/.cache"
  if not learns or not folder:find("^/") then return nil end
  local parts = script_words(options)
  parts[1] = text
  local content = table.concat(parts, "\0") .. "\0" .. read(options, "chdir")
  return folder .. "/gpusage/runs/" .. string.format("%010.0f%010.0f", require("gpusage_request").digest(content))
end

-- Return `text` quoted as one shell word.
function M.quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Return what is sent in place of the card when job-card ended with this status and printed nothing, or nil if there is
-- nothing to report. gpusage_slurm.submission.request turns it into a sentence.
local function failure_text(status)
  return status ~= 0 and "!" .. status or nil
end

-- Return the card of the model that `comment` names, or why there is no card; nil if it names no model. A relative path
-- starts at `folder`, where the job will run. If this machine has no such folder, it starts where sbatch was called.
function M.card(comment, folder)
  return M.job_card("-- " .. M.quoted(comment), folder)
end

-- Return the comment that the records of earlier runs make, and the card of their model or why there is none; nil if they no
-- longer hold.
function M.first_run(record)
  if not is_there(record, "d") then return nil end
  local card, comment = M.job_card("--first-run " .. M.quoted(record), "")
  if comment and comment ~= "" then return comment, card end
end

-- Return what `gpusage job-card` prints last, the card or why there is none, and the line before it if there is one.
function M.job_card(arguments, folder)
  local limit = string.format("%.3f", M.limit_s):gsub(",", ".")
  local backstop = string.format("%.3f", M.limit_s + 1):gsub(",", ".") -- job-card itself ends in time
  local from = "cd -- " .. M.quoted(folder) .. " >/dev/null 2>&1; "
  local command = "timeout -k 0.5 " .. backstop .. " " .. M.quoted(M.command)
    .. " job-card --limit-s " .. limit .. " " .. arguments
  local pipe = io.popen(from .. command .. " </dev/null 2>/dev/null; echo =$?", "r")
  if not pipe then return nil end
  local output = pipe:read(MAXIMUM_CARD_BYTES + MAXIMUM_COMMENT_BYTES) or ""
  pipe:close()
  local comment, rest = output:match("^([%w~/].-,[^\n]*)\n(.*)$")
  local card, status = (rest or output):match("^(!?[%w+/=]*)\n?=(%d+)\n$") -- "!" begins the reason why there is no card
  if card and card ~= "" and #card <= MAXIMUM_CARD_BYTES then return card, comment end
  return failure_text(status and tonumber(status) or "unknown"), comment
end

-- Return the job's deadline in seconds since 1970 as text, or nil; Slurm tells it in local time.
function M.deadline(options)
  local words = { read(options, "deadline"):match("^(%d%d%d%d)-(%d%d)-(%d%d)T(%d%d):(%d%d):(%d%d)$") }
  if #words == 0 then return nil end
  local time = {}
  for i, name in ipairs({ "year", "month", "day", "hour", "min", "sec" }) do time[name] = tonumber(words[i]) end
  return string.format("%.0f", os.time(time))
end

-- Put `card` and `deadline`, which may be nil, where sbatch reads the job's environment. sbatch always sends variables
-- that begin with SLURM_, whatever --export says. Without luaposix only a job that exports all gets a card, because we
-- do not change the user's --export.
function M.export_card(options, card, deadline)
  if set_variable("SLURM_GPUSAGE_CARD", card) then
    if deadline then set_variable("SLURM_GPUSAGE_DEADLINE", deadline) end
    return
  end
  local export = read(options, "export")
  if (export == "" or export == "ALL") and not os.getenv("SBATCH_EXPORT") then
    options["export"] = "ALL,GPUSAGE_CARD=" .. card .. (deadline and ",GPUSAGE_DEADLINE=" .. deadline or "")
  end
end

function M.sbatch(options)
  -- Whoever asks for --parsable reads what sbatch prints by machine, and some read its errors as well.
  if read(options, "parsable") == "set" or has_option(options, "quiet") then set_variable("SLURM_GPUSAGE_QUIET", "1") end
  local script = script_head(options)
  local words, card = M.model_request(options, script), nil
  local record = not words and M.run_record(options, script) or nil
  if record or os.getenv("SLURM_GPUSAGE_LEARN") then set_variable("SLURM_GPUSAGE_LEARN", record or "") end
  if words then
    card = M.card(words, read(options, "chdir"))
  elseif record then
    words, card = M.first_run(record)
    if words then set_variable("SLURM_GPUSAGE_COMMENT", words) end
  end
  if card then M.export_card(options, card, M.deadline(options)) end
end

-- Return the list `text` without its GPUs, and how many GPUs it names. If it names none, return `text` itself.
local function without_gpus(text)
  local others, gpus = {}, 0
  for word in text:gmatch("[^,]+") do
    local plain = word:gsub("^gres[:/]", "")
    if plain == "gpu" or plain:find("^gpu[:=]") then
      gpus = gpus + (tonumber(plain:match("[:=](%d+)$")) or 1)
    else
      others[#others + 1] = word
    end
  end
  return table.concat(others, ","), gpus
end

-- Return how many GPUs an option such as --gpus=v100:1 names.
local function gpu_count(value)
  local gpus = 0
  for word in value:gmatch("[^,]+") do
    gpus = gpus + (tonumber(word:match("^%d+$") or word:match("[:=](%d+)$")) or 1)
  end
  return gpus
end

-- Return the share that this job holds, or nil if it holds none of ours.
local function held_share()
  local share, job = os.getenv("GPUSAGE_DECISION") or "", os.getenv("SLURM_JOB_ID") or ""
  local owner = os.getenv("GPUSAGE_JOB") or job -- the task prolog's; another's where salloc took the mark along
  local percentage = os.getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "" -- Slurm's own, where a share is held
  return job ~= "" and owner == job and percentage ~= "" and share:match("^mps:%d+$") or nil
end

-- Return whether the options ask for a GPU per task: Slurm then binds each task to its own GPU.
local function asks_per_task(options)
  local _, gpus = without_gpus(read(options, "tres-per-task"))
  return gpus > 0 or has_option(options, "gpus-per-task") or has_option(options, "ntasks-per-gpu")
end

-- Remove every GPU that the options name, and return how many there were. The options hold the command line and what
-- srun read from SLURM_GPUS and similar variables; those variables still tell the script what its user asked for.
local function remove_gpus(options, gres)
  local _, gpus = without_gpus(gres)
  local per_task, task_gpus = without_gpus(read(options, "tres-per-task"))
  gpus = math.max(gpus, task_gpus)
  for _, name in ipairs(GPU_OPTIONS) do gpus = math.max(gpus, gpu_count(read(options, name))) end
  for _, name in ipairs({ "mem-per-gpu", "ntasks-per-gpu" }) do
    if has_option(options, name) then gpus = math.max(gpus, 1) end
  end
  if gpus ~= 1 then return gpus end
  for _, name in ipairs(GPU_OPTIONS) do
    if read(options, name) ~= "" then options[name] = "" end
  end
  if task_gpus > 0 then options["tres-per-task"] = per_task end
  return gpus
end

-- Remove the options that count per GPU: the share lies on one GPU, and the step no longer asks for a GPU.
local function remove_counts(options)
  if has_option(options, "mem-per-gpu") then options["mem-per-gpu"] = "0" end
  if has_option(options, "ntasks-per-gpu") then
    options["ntasks"] = read(options, "ntasks-per-gpu")
    options["ntasks-per-gpu"] = NO_VALUE
  end
end

-- Remove a binding to GPUs: it would hide the share's only device from several tasks. Slurm 22.05 cannot bind other
-- resources, and its slurmstepd crashes on "none". On 22.05 the task prolog shows the device again instead.
local function unbind(options)
  options["tres-bind"] = "gres/mps:none"
  if read(options, "tres-bind") == "" then options["gpu-bind"] = "closest" end
end

-- Handle an srun inside a job of ours: if it asks for one GPU, give it the share that the job holds.
function M.srun(options)
  local share, other = held_share(), read(options, "jobid")
  if not share or (other:find("^%d+$") and other ~= os.getenv("SLURM_JOB_ID")) then return end
  local gres = read(options, "gres")
  local bound = has_option(options, "gpu-bind") or read(options, "tres-bind") ~= "" or asks_per_task(options)
  local gpus = remove_gpus(options, gres)
  if bound and gpus <= 1 then unbind(options) end
  if gpus ~= 1 then return end
  remove_counts(options)
  local others = without_gpus(gres):gsub("gres[:/]", "")
  if others ~= "none" then options["gres"] = others == "" and share or share .. "," .. others end
end

-- Handle the command that runs this filter. Never fails.
function M.pre_submit(options)
  local kind = read(options, "type")
  if read(options, "test-only") == "set" then set_variable("SLURM_GPUSAGE_DRY_RUN", "1") end
  if kind == "sbatch" then pcall(M.sbatch, options) end
  if kind == "srun" then pcall(M.srun, options) end
end

-- Run after the site's own filter; its verdict stays.
function M.wrap(settings)
  for name, value in pairs(settings or {}) do M[name] = value end
  if M.wrapped then return end
  M.wrapped = true
  local own = slurm_cli_pre_submit
  function slurm_cli_pre_submit(options, offset)
    local verdict = slurm.SUCCESS
    if own then verdict = own(options, offset) end
    if verdict == nil or verdict == slurm.SUCCESS then M.pre_submit(options) end
    return verdict
  end
  if not slurm_cli_setup_defaults then
    function slurm_cli_setup_defaults() return slurm.SUCCESS end
  end
  if not slurm_cli_post_submit then
    function slurm_cli_post_submit() return slurm.SUCCESS end
  end
end

return M

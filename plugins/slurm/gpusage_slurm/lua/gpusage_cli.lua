-- gpusage in cli_filter.lua: runs as the user inside sbatch and srun; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- sbatch: lets `gpusage job-card` read the model that the comment names, and puts the card into the job's environment.
-- srun inside a job whose GPU became a share: asks for the share where the script asks for the GPU.
-- Whatever goes wrong, the command goes on as the user wrote it.

local M = { command = "gpusage", limit_s = 10 }

local MAXIMUM_CARD_BYTES = 16384
local GPU_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task" }
local EMPTIED = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gpu-bind" }
local SUFFIXES = { "%.onnx$", "%.pt2$", "%.card%.json$", "config%.json$" }
local PREFIXES = { "^timm:", "^torchvision:", "^hf:", "^model=" }

local function read(options, name)
  local done, value = pcall(function() return options[name] end)
  return done and type(value) == "string" and value or ""
end

-- Tell whether `comment` may be addressed to us; gpusage.comment has the last word.
function M.concerns(comment)
  if comment:find("gpusage", 1, true) then return true end
  local trimmed = comment:match("^%s*(.-)%s*$")
  for _, pattern in ipairs(SUFFIXES) do if trimmed:find(pattern) then return true end end
  for _, pattern in ipairs(PREFIXES) do if trimmed:find(pattern) then return true end end
  return false
end

-- Return `text` as one word of the shell.
function M.quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Return the card of the model that `comment` names, nil where there is none within the limit.
function M.card(comment)
  local limit = string.format("%.3f", M.limit_s)
  local command = "exec timeout -k 1 " .. limit .. " " .. M.quoted(M.command) .. " job-card -- " .. M.quoted(comment)
  local pipe = io.popen(command .. " </dev/null 2>/dev/null", "r")
  if not pipe then return nil end
  local card = pipe:read(MAXIMUM_CARD_BYTES + 2) or ""
  pipe:close()
  card = card:match("^(!?[%w+/=]+)\n?$") -- "!" begins the reason why there is none
  return card and #card <= MAXIMUM_CARD_BYTES and card or nil
end

-- Put `card` where sbatch takes the job's environment from; the user's own --export stays as it is.
function M.send(options, card)
  local found, stdlib = pcall(require, "posix.stdlib")
  if found and pcall(stdlib.setenv, "GPUSAGE_CARD", card) then return end
  local export = read(options, "export")
  if (export == "" or export == "ALL") and not os.getenv("SBATCH_EXPORT") then
    options["export"] = "ALL,GPUSAGE_CARD=" .. card
  end
end

function M.sbatch(options)
  local comment = read(options, "comment")
  if comment == "" or not M.concerns(comment) then return end
  local card = M.card(comment)
  if card then M.send(options, card) end
end

-- Return the resources of the list `gres` that are not GPUs, and how many GPUs it names.
local function without_gpus(gres)
  local others, gpus = {}, 0
  for word in gres:gmatch("[^,]+") do
    local plain = word:gsub("^gres[:/]", "")
    if plain == "gpu" or plain:find("^gpu[:=]") then
      gpus = gpus + (tonumber(plain:match("[:=](%d+)$")) or 1)
    else
      others[#others + 1] = plain
    end
  end
  return others, gpus
end

-- Return how many GPUs an option such as --gpus=v100:1 names.
local function count_of(value)
  local gpus = 0
  for word in value:gmatch("[^,]+") do
    gpus = gpus + (tonumber(word:match("^%d+$") or word:match("[:=](%d+)$")) or 1)
  end
  return gpus
end

-- An srun inside a job of ours: where it asks for one GPU, give it the share that the job holds.
function M.srun(options)
  local share = os.getenv("GPUSAGE_DECISION") or ""
  local own = os.getenv("SLURM_JOB_ID") or ""
  -- Slurm itself sets the percentage in a job that holds a share: the mark alone may be another job's.
  local percentage = os.getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or ""
  if not share:find("^mps:[%w_.:-]+$") or own == "" or percentage == "" then return end
  local other = read(options, "jobid")
  if other:find("^%d+$") and other ~= own then return end
  local others, gpus = without_gpus(read(options, "gres"))
  for _, name in ipairs(GPU_OPTIONS) do gpus = math.max(gpus, count_of(read(options, name))) end
  if gpus ~= 1 then return end
  table.insert(others, 1, share)
  for _, name in ipairs(EMPTIED) do
    if read(options, name) ~= "" then options[name] = "" end
  end
  options["gres"] = table.concat(others, ",")
end

-- Do our part for the command at hand. Never fails.
function M.pre_submit(options)
  local kind = read(options, "type")
  if kind == "sbatch" then pcall(M.sbatch, options) end
  if kind == "srun" then pcall(M.srun, options) end
end

-- Put us behind the site's own filter, which keeps its say.
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

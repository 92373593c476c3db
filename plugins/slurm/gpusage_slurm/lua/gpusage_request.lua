-- A job's request as one line of JSON, and the JSON that gpusaged's protocol needs; Lua 5.1 to 5.4, Slurm 22.05 to 26.05.
--
-- slurmctld waits for all of this, so it takes time in proportion to the part of a text that it reads, whatever a user wrote, and
-- reads no file. gpusage_cli.lua uses the same functions where sbatch runs.

local M = { dry_run_variable = "SLURM_GPUSAGE_DRY_RUN" } -- our filter sets it where --test-only was typed; Slurm does not tell us

local MAXIMUM_FIELD_BYTES = 8192
local MAXIMUM_CARD_BYTES = 16384
local MAXIMUM_SCRIPT_BYTES = 262144
local MAXIMUM_HEAD_BYTES = 16384 -- of a script: where its lines `#GPUSAGE` stand
local MAXIMUM_DIGESTED_BYTES = 4096
local MAXIMUM_EXPORT_BYTES = 200
local UNSET = { [65534] = true, [65535] = true, [4294967294] = true, [4294967295] = true }
local TEXTS = {
  "comment", "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "tres_bind",
  "tres_freq", "cpus_per_tres", "mem_per_tres", "features", "prefer", "partition",
  "req_nodes", "exc_nodes", "reservation", "qos", "default_qos", "array_inx", "name", "account",
  "default_account",
}
local NUMBERS = {
  "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "sockets_per_node", "shared", "ntasks_per_tres", "min_cpus", "pn_min_cpus",
  "cpus_per_task", "min_mem_per_node", "min_mem_per_cpu", "pn_min_tmp_disk", "cores_per_socket", "threads_per_core",
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
  add("dry_run", variable(job, M.dry_run_variable) == "1" and "1" or "0")
  add("shows_model", variable(job, "SLURM_GPUSAGE_LEARN") ~= "" and "1" or "")
  add("card", #card <= MAXIMUM_CARD_BYTES and card or "")
  add("deadline", deadline(job))
  add("export", export_without_ours(job):sub(1, MAXIMUM_EXPORT_BYTES))
  return '{"v":1,"manager":"slurm","fields":{' .. table.concat(parts, ",") .. "}" .. (extra or "") .. "}\n"
end

M.get, M.number_text, M.variable, M.from_filter, M.export_without_ours = get, number_text, variable, from_filter, export_without_ours

return M

-- Plays slurmctld's or sbatch's part: arg[1] is the modules' folder, arg[2] a chunk that returns a table of texts to report.
package.path = arg[1] .. "/?.lua;" .. package.path
logged, printed = {}, {}
slurm = { SUCCESS = 0, ERROR = -1 }
function slurm.log_info(...) logged[#logged + 1] = string.format(...) end
slurm.log_debug = slurm.log_info
function slurm.log_user(...) printed[#printed + 1] = string.format(...) end

-- A job description as slurmctld hands it over: reading anything is allowed, writing what is not there is an error.
function job_of(fields)
  local store = { tres_per_node = "gres:gpu:1", script = "#!/bin/sh\n", user_id = 1000, environment = {} }
  for _, name in ipairs({ "tres_per_job", "tres_per_socket", "tres_per_task", "tres_bind", "features", "prefer", "admin_comment" }) do
    store[name] = ""
  end
  for name, value in pairs(fields or {}) do store[name] = value end
  return setmetatable({ store = store }, {
    __index = function(self, name) return rawget(self, "store")[name] end,
    __newindex = function(self, name, value)
      local inside = rawget(self, "store")
      if name == "gres" then name, value = "tres_per_node", "gres:" .. value end
      if inside[name] == nil then error("no such field: " .. name) end
      if type(value) ~= "string" then error("string expected, got " .. type(value)) end
      inside[name] = value
    end,
  })
end

local load_text = loadstring or load
local report = assert(load_text(arg[2]))()
report.logged, report.printed = table.concat(logged, "\n"), table.concat(printed, "\n")
local encode = require("gpusage_request").encode_text
local parts = {}
for name, value in pairs(report) do parts[#parts + 1] = encode(name) .. ":" .. encode(tostring(value)) end
print("{" .. table.concat(parts, ",") .. "}")

-- A job_submit.lua for a site that has none: gpusage alone. `gpusage slurm install` writes the block with the site's paths.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = folder .. "/?.lua;" .. package.path
do
  local works, trouble = pcall(function() require("gpusage").wrap() end)
  if not works then slurm.log_info("%s", "gpusage: " .. tostring(trouble)) end
  -- These must exist even without the module: slurmctld refuses every job if one of them is missing.
  local function nothing() return slurm.SUCCESS end
  slurm_job_submit = slurm_job_submit or nothing
  slurm_job_modify = slurm_job_modify or nothing
end
return slurm.SUCCESS

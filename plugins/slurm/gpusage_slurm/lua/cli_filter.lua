-- A cli_filter.lua for a site that has none: gpusage alone. `gpusage slurm install` writes the block with the site's paths.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = folder .. "/?.lua;" .. package.path
do
  local works, trouble = pcall(function() require("gpusage_cli").wrap() end)
  if not works then slurm.log_debug("%s", "gpusage: " .. tostring(trouble)) end
  -- These must exist even without the module: sbatch and srun fail if one of them is missing.
  local function nothing() return slurm.SUCCESS end
  slurm_cli_setup_defaults = slurm_cli_setup_defaults or nothing
  slurm_cli_pre_submit = slurm_cli_pre_submit or nothing
  slurm_cli_post_submit = slurm_cli_post_submit or nothing
end
return slurm.SUCCESS

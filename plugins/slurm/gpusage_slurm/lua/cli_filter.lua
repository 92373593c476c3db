-- A cli_filter.lua for a site that has none: gpusage alone. `gpusage slurm install` writes the block with the site's paths.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = folder .. "/?.lua;" .. package.path
do
  local found, gpusage = pcall(require, "gpusage_cli")
  if found then gpusage.wrap() else slurm.log_info("%s", "gpusage: " .. tostring(gpusage)) end
end
return slurm.SUCCESS

from hypothesis import given
from hypothesis import strategies as st

from gpusage_slurm.install.lua_scripts import find_block, with_block, without_block

pieces = [
    "function slurm_job_submit(d, p, u)\n",
    "  return slurm.SUCCESS\n",
    "end\n",
    "return slurm.SUCCESS\n",
    "-- x\n",
    "\n",
]
scripts = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(pieces), max_size=8).map("".join))
bodies = st.sampled_from(['require("gpusage")', "a = 1\nb = 2\n", ""])


@given(scripts, bodies)
def test_taking_the_block_out_gives_the_sites_bytes_back(script: str, body: str) -> None:
    assert without_block(with_block(script, body)) == script


@given(scripts, bodies)
def test_putting_the_block_in_twice_is_putting_it_in_once(script: str, body: str) -> None:
    once = with_block(script, body)
    assert with_block(once, body) == once
    assert body.rstrip() in (find_block(once) or "")


def test_the_block_stands_before_the_scripts_own_return() -> None:
    script = "function slurm_job_submit(d, p, u)\n  return slurm.SUCCESS\nend\nreturn slurm.SUCCESS\n"
    assert with_block(script, "gpusage()").endswith("-- <<< gpusage\nreturn slurm.SUCCESS\n")


def test_a_script_without_a_return_gets_the_block_at_its_end() -> None:
    script = "function slurm_job_submit(d, p, u)\n  return slurm.SUCCESS\nend\n"
    assert with_block(script, "gpusage()").startswith(script)

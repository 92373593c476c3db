"""Lets Snakemake look at its jobs each second: its Slurm plugin waits 40 s for the first look."""

import asyncio

wait = asyncio.sleep


async def sleep(delay, result=None):
    """Return *result* within a second."""
    return await wait(min(delay, 1), result)


asyncio.sleep = sleep

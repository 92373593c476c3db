"""The commands that a user asks about models: their options and help; each action is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.program import run_by

PREDICT_EXAMPLES = """\b
Examples:
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --gpu h100
  gpusage predict examples/models/bert_base.onnx,batch=8,precision=bf16 --json
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --explain -o resnet50.html
  gpusage predict examples/models/resnet50.onnx --batch 64 --steps 100000 --deadline 8h
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --share 50 --share 25 --utilization 60
  gpusage predict examples/models/resnet50.onnx --batch 32,64,128 --gpu v100
  gpusage predict examples/models/resnet50.onnx --max-batch --precision bf16
  gpusage predict examples/models/gpt2.onnx --serve --generate 512+128 --precision fp16 --rate 5/s --p99 200ms
"""
COLOCATE_EXAMPLES = """\b
Examples:
  cd examples/models
  gpusage colocate resnet50.onnx bert_base.onnx --batch 1 --mode infer --gpu a100
  gpusage colocate resnet18.onnx,batch=16 dlrm.onnx,mode=infer --gpu v100 --json
  gpusage colocate resnet18.onnx,batch=16 --among ../candidates.txt --gpu v100
"""
CARD_EXAMPLES = """\b
Examples:
  gpusage card examples/models/resnet50.onnx
  gpusage card examples/models/resnet50.onnx -o resnet50.card.json
  gpusage card examples/models/unet.onnx --json
"""
GPUS_EXAMPLES = """\b
Examples:
  gpusage gpus
  gpusage gpus a100 l40s
  gpusage gpus --json
"""
CAPTURE_EXAMPLES = """\b
Examples:
  gpusage capture -- python train.py --epochs 3
  gpusage capture -o resnet.card.json -- torchrun --nproc_per_node 4 train.py
  gpusage capture train.sbatch
  gpusage capture --submit train.sbatch
  gpusage capture --from-run 1234
  gpusage capture --shell 'cd examples && BATCH=64 python train.py --batch $BATCH'
"""


@click.command(epilog=PREDICT_EXAMPLES)
@options.models_argument
@options.gpus_option
@click.option(
    "--batch",
    "batches",
    callback=options.read_sizes,
    metavar="N[,N...]",
    help="Samples per step on one GPU; several, joined by commas, are predicted one by one.  [default: 1]",
)
@options.flag(
    "--max-batch",
    "wants_largest",
    help="Predict the largest batch that fits on each GPU, by the upper end of the memory.",
)
@options.step_options
@click.option(
    "--share",
    "shares",
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    multiple=True,
    help="Predict for this MPS share of each GPU, and what the share costs; may be repeated.",
)
@options.job_options("utilization", "step_time", "steps")
@click.option(
    "--deadline",
    "deadline_s",
    type=options.TIME,
    help="Name the cheapest GPU on which the run ends within TIME, such as 8h; needs --steps.",
)
@click.option(
    "--price",
    metavar="[GPU=]N[,...]",
    help="What an hour of any GPU, or of each named one, costs; needs --steps or --serve.  [default: the site's]",
)
@options.flag(
    "--explain",
    "explains",
    help="Show where time and memory go, by operator class and by layer, on each --gpu or else the newest.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the explanation as an HTML page with plots, which needs no network; FILE.json gets what --json prints.",
)
@options.flag(
    "--fail-if-not-fits",
    "must_fit",
    help="Exit with status 1 if the memory of a prediction does not fit, by its upper end.",
)
@options.flag(
    "--serve",
    "serves",
    help="Show what each GPU serves of a language model: answers side by side, tokens/s per user and per GPU, the "
    "first token, and what a million tokens cost; needs --generate. The engine is vllm unless --engine names one.",
)
@click.option("--batched-tokens", type=click.IntRange(1, 10**6), help="With --serve: vLLM's --max-num-batched-tokens.")
@options.flag("--fp8-cache", "has_narrow_cache", help="With --serve: keys and values of 1 byte.")
@click.option(
    "--rate",
    "requests_per_s",
    type=options.RATE,
    help="With --serve: compute how many GPUs, or which share of one, serve this many requests per second.",
)
@click.option(
    "--p99",
    "first_token_s",
    type=options.LATENCY,
    help="With --rate: the time, such as 200ms, within which 99 of 100 requests have their first token.",
)
@options.json_option
@click.pass_context
@run_by("gpusage.cli.predicting.predict:predict")
def predict() -> None:
    """Predict what each MODEL needs on each GPU: time, memory, utilization.

    MODEL is an .onnx or .pt2 file, a Hugging Face folder, a saved card or a name such as timm:resnet50. It may carry
    its own options behind commas.
    """


@click.command(epilog=COLOCATE_EXAMPLES)
@options.models_argument
@options.path_option("--among", "candidates", help="Rank the models of this file, one per line, as partners of MODEL.")
@options.flag(
    "--running",
    "is_running",
    help="Rank the running jobs by their recorded predictions; jobs that name no model are left out.",
)
@options.flag("--queue", "is_waiting", help="The same for pending jobs.")
@options.path_option(
    "--pairs",
    "pairs_file",
    help="CSV or Parquet file of pairs that you measured (model, beside, slowdown), to learn partners from.",
)
@click.option("--gpu", metavar="NAME", required=True, help="The GPU to share.", shell_complete=options.complete_gpu)
@options.workload_options
@options.json_option
@click.pass_context
@run_by("gpusage.cli.colocate:colocate")
def colocate() -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS.

    A MODEL may have its own options after commas; the command's options are the defaults. The exit status is 1 if
    sharing is not recommended; with --among, --running or --queue, if no candidate is recommended.
    """


@click.command(epilog=CARD_EXAMPLES)
@options.models_argument
@options.job_options("shape")
@options.path_option(
    "-o", "--output", help="Save the readable form here, as NAME.card.json; name a folder for several models."
)
@options.json_option
@click.pass_context
@run_by("gpusage.cli.cards.card:card")
def card() -> None:
    """Describe each MODEL in at most 4096 characters, without its weights.

    gpusage predicts the same from a card as from the model file. With --json, the card is in `card`.
    """


@click.command(epilog=GPUS_EXAMPLES)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@options.json_option
@run_by("gpusage.cli.listings:gpus")
def gpus() -> None:
    """List the GPUs that gpusage can predict for, or only those that are named, and the source of each row.

    gpusage also understands other names of a GPU: workload managers' type names, NVML's names, and the short forms.
    """


@click.command(epilog=CAPTURE_EXAMPLES, context_settings={"allow_interspersed_args": False})
@options.path_option("-o", "--output", help="Save the card here, as NAME.card.json.  [default: in a cache]")
@click.option(
    "--gpus", "gpu_count", type=click.IntRange(1, 4096), help="GPUs that train together.  [default: torchrun's]"
)
@click.option("--time", "time_s", default="60s", show_default=True, type=options.TIME, help="End it after this.")
@options.flag("--network", "has_network", help="Let the program use the network.")
@options.flag("--run-here", "runs_here", help="Let the program really write files before its first step.")
@click.option("--shell", "line", metavar="TEXT", help="A command line as one text, with variables and 'cd'.")
@click.option("--from-run", "job_id", metavar="JOB", help="The program that this job of yours showed with learn=on.")
@options.flag("--submit", "submits", help="Then submit SCRIPT with what was seen, unless it names a model itself.")
@options.json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT | -- COMMAND...")
@click.pass_context
@run_by("gpusage.cli.capture:capture")
def capture() -> None:
    """Run a Python program on this host up to its first full step, and print its card and the comment for its job.

    The program thinks that it has a GPU, its layers work on shapes alone, and it ends after one update. What it writes
    stays in memory. COMMAND must run Python; SCRIPT is a job script with such a line. It needs PyTorch.
    """


@click.command(epilog="Example: gpusage calibrate -o /etc/gpusage/v100.json")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="cpu is a trial.")
@click.option("--gpu", default="", shell_complete=options.complete_gpu, help="The GPU.  [default: torch's name]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it here.  [default: GPU.calibration.json]")
@options.json_option
@run_by("gpusage.cli.calibrate:calibrate")
def calibrate() -> None:
    """Measure steps of three small models on this idle node, in two minutes, and write what they show of its host.

    gpusaged, predict and validate read the file that `[gpus] calibration` in gpusage.toml names. It needs PyTorch.
    """


@click.command(context_settings={"allow_interspersed_args": False})
@options.flag("--serve", help="COMMAND is the inference job; each call of its model is a request.")
@click.option("--gpu", metavar="NAME", help="Predict the parts of a step for this GPU.  [default: PyTorch's own]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@run_by("gpusage.cli.gate:gate")
def gate() -> None:
    """Run COMMAND, a Python program, so that training gives way to inference on one GPU.

    While a request is in flight, training holds back the parts of its step that need more than half of the GPU.
    It keeps at least a fifth of the time. Both jobs must be one user's. It needs the extra [torch].

    Example: gpusage gate -- python train.py --epochs 3
    """

"""The card of a model with gigabytes of weights: goal <= 0.1 s after start-up and <= 100 MB.

The weights lie beside the model (2.7 GB), as exporters do from 2 GB on. They are a hole in a sparse file, so that the
bench needs no disk; a reader that touched them would still pay. The verdict is on the processor's time, which other
work on the machine does not change. The same model without any weights is read in turns, so that the ratio shows what
the weights cost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from onnx import TensorProto, helper

GOAL_S, GOAL_BYTES = 0.1, 100 * 10**6
REPEATS = 7
LAYERS, WIDTH = 192, 1875
"""As many products as a decoder of 32 layers has; 2.7 GB of fp32."""
MEASURE = """
import resource, sys, time
from gpusage.graphs.card.text import encode
from gpusage.graphs.onnx.reader import read_model
busy_s = time.process_time()
encode(read_model(sys.argv[1], {}))
print(time.process_time() - busy_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def write_model(path: Path, *, with_weights: bool) -> None:
    """Write linear layers with normalizations between them; the weights are a sparse file beside *path*."""
    nodes, weights, value = [], [], "v0"
    for layer in range(LAYERS):
        weight = TensorProto(name=f"w{layer}", dims=(WIDTH, WIDTH), data_type=TensorProto.FLOAT)
        if with_weights:
            weight_bytes = 4 * WIDTH * WIDTH
            places = {"location": f"{path.name}.data", "offset": layer * weight_bytes, "length": weight_bytes}
            for key, place in places.items():
                weight.external_data.add(key=key, value=str(place))
            weight.data_location = TensorProto.EXTERNAL
        weights.append(weight)
        nodes += [
            helper.make_node("MatMul", [value, weight.name], [f"p{layer}"]),
            helper.make_node("Gelu", [f"p{layer}"], [f"v{layer + 1}"]),
        ]
        value = f"v{layer + 1}"

    first, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 512, WIDTH]) for name in ("v0", value)
    )
    graph = helper.make_graph(nodes, "layers", [first], [last], weights)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    if with_weights:
        with path.with_name(f"{path.name}.data").open("wb") as file:
            file.truncate(4 * WIDTH * WIDTH * LAYERS)


def main() -> int:
    """Print the table; return 1 where a goal is missed."""
    with tempfile.TemporaryDirectory() as name:
        paths = {kind: Path(name) / f"{kind}.onnx" for kind in ("plain", "weights")}
        for kind, path in paths.items():
            write_model(path, with_weights=kind == "weights")

        figures: dict[str, list[tuple[float, float]]] = {kind: [] for kind in paths}
        for _ in range(REPEATS):
            for kind, path in paths.items():
                output = subprocess.run(
                    [sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True
                ).stdout
                busy_s, peak_bytes = map(float, output.split())
                figures[kind].append((busy_s, peak_bytes))

    best_s = {kind: min(busy_s for busy_s, _ in each) for kind, each in figures.items()}
    peak_bytes = max(peak for each in figures.values() for _, peak in each)
    for kind, busy_s in best_s.items():
        print(
            f"{kind:8} {busy_s * 1e3:6.1f} ms of the processor, {busy_s / best_s['plain']:.2f} of that without weights"
        )
    is_met = max(best_s.values()) <= GOAL_S and peak_bytes <= GOAL_BYTES
    print(f"{peak_bytes / 1e6:.0f} MB at most; goals {GOAL_S * 1e3:.0f} ms, {GOAL_BYTES / 1e6:.0f} MB: "
          f"{'kept' if is_met else 'missed'}")  # fmt: skip
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())

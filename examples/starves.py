"""A training that needs 60 GiB, on no GPU: where its cap is smaller it fails as PyTorch does."""

from __future__ import annotations

import os
import sys

NEEDS_MIB = 60 * 1024


def main() -> None:
    """Fail where CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, ``0=20020M``, leaves too little."""
    cap = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    limit_mib = int(cap.partition("=")[2].rstrip("M")) if cap else NEEDS_MIB
    if limit_mib < NEEDS_MIB:
        sys.exit(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 GiB. "
            f"GPU 0 has a total capacity of {limit_mib / 1024:.2f} GiB."
        )
    print(f"trained, {'at most ' + cap if cap else 'with a whole GPU'}")


if __name__ == "__main__":
    main()

"""Regenerate src/tonnage/csi/_proto from its .proto files: messages, their types for mypy, grpclib stubs.

Run `make proto` after a change; the results are committed, so that building and running need no compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PROTO = SOURCE / "tonnage" / "csi" / "_proto"


def main() -> int:
    """Run the compiler on every .proto file; its exit code is ours."""
    # The plugins are console scripts that lie beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(SOURCE)  # so that generated files import each other by their package
    includes = Path(protoc.__file__).parent / "_proto"
    sources = [str(path.relative_to(SOURCE)) for path in sorted(PROTO.glob("*.proto"))]
    outputs = ["--python_out=.", "--mypy_out=.", "--grpclib_python_out=."]
    code: int = protoc.main(["protoc", "-I.", f"-I{includes}", *outputs, *sources])
    return code


if __name__ == "__main__":
    sys.exit(main())

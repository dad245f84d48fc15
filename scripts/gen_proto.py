"""Regenerate the folders _proto from their .proto files: messages, their types for mypy, grpclib stubs.

Run `make proto` after a change; the results are committed, so that building and running need no compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parent.parent / "src"
FOLDERS = [SOURCE / "tonnage" / package / "_proto" for package in ("csi", "storage/registry")]


def generate(into: Path) -> int:
    """Run the compiler on every .proto file and write below the folder `into`; the compiler's exit code."""
    # The plugins are console scripts that lie beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    includes = Path(protoc.__file__).parent / "_proto"
    # Relative to the source folder, so that generated files import each other by their package.
    sources = [str(file.relative_to(SOURCE)) for folder in FOLDERS for file in sorted(folder.glob("*.proto"))]
    outputs = [f"--{plugin}_out={into}" for plugin in ("python", "mypy", "grpclib_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"-I{includes}", *outputs, *sources]
    return subprocess.run(command, cwd=SOURCE, env={**os.environ, "PATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(generate(SOURCE))

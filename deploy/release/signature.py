"""Signatures of OpenSSH over the sums of a release: `ssh-keygen -Y`, which every machine with an SSH client has."""

from __future__ import annotations

import subprocess
from pathlib import Path

from deploy.release.tag import Rejected

SIGNERS = Path("deploy/release/allowed_signers")
"""Below a tree: who may sign, in the format of ssh-keygen(1), ALLOWED SIGNERS."""
NAMESPACE = "tonnage-release"
"""So that no signature of another purpose is taken for one of a release."""


def signer(key: Path, signers: Path) -> str:
    """The name that `signers` gives to a private key. Raises Rejected."""
    if not key.is_file():
        raise Rejected(f"{key}: there is no such private key; name one with KEY=FILE (docs/release.md)")
    public = " ".join(_keygen(key, "-y", "-f", str(key)).split()[:2])
    for line in signers.read_text().splitlines():
        if public in line and not line.startswith("#"):
            return line.split()[0]
    raise Rejected(f"{key}: its public key is not in {SIGNERS}; add it in a commit before the tag (docs/release.md)")


def sign(file: Path, key: Path) -> Path:
    """Write FILE.sig. Raises Rejected."""
    _keygen(file, "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(file))
    return file.with_name(f"{file.name}.sig")


def check(file: Path, signers: Path) -> str:
    """The name of who signed a file, as FILE.sig says. Raises Rejected."""
    signature = file.with_name(f"{file.name}.sig")
    for needed in (file, signature, signers):
        if not needed.is_file():
            raise Rejected(f"{needed}: missing; download all files of the release again")
    found = _keygen(signature, "-Y", "find-principals", "-s", str(signature), "-f", str(signers))
    name = found.partition("\n")[0]
    known = ("-f", str(signers), "-I", name, "-n", NAMESPACE)
    _keygen(signature, "-Y", "verify", *known, "-s", str(signature), given=file.read_bytes())
    return name


def _keygen(about: Path, *words: str, given: bytes = b"") -> str:
    """What ssh-keygen prints. It asks for a key's passphrase on the terminal. about: the file that a failure names.

    Raises Rejected.
    """
    try:
        ended = subprocess.run(["ssh-keygen", *words], input=given or None, capture_output=True, check=False)
    except FileNotFoundError:
        raise Rejected("ssh-keygen: not installed: it makes and checks signatures; Debian: openssh-client") from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout).decode(errors="replace").strip().splitlines()
        raise Rejected(f"{about}: ssh-keygen: {said[-1] if said else 'ssh-keygen failed'}")
    return ended.stdout.decode()

"""Machine code of a small static program: system calls with constant arguments, jumps on their results, and data.

Used for the program that starts a container's command. It is made here because it must need nothing: no interpreter,
linker or library that could be a container's own file. Each machine has its encoding of the same few instructions.
Pure.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tonnage.base.errors import UnsupportedError

_TEXT, _DATA = 0x400000, 0x10000000
_PAGE = 1 << 16
"""The largest page of any of the machines."""
_HEADERS = 64 + 3 * 56
_LOAD, _GNU_STACK = 1, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4


@dataclass(frozen=True)
class OnStack:
    """An argument of a call: an address, in bytes above the stack pointer, which points to the number of arguments."""

    offset: int


Argument = int | OnStack


class Assembler(ABC):
    """Appends instructions. Labels are numbers, each placed once; data gets its address when it is added."""

    machine: int
    """The machine's number in ELF headers."""
    calls: dict[str, int]
    """Numbers of system calls."""

    def __init__(self) -> None:
        self._code = bytearray()
        self._data = bytearray()
        self._places: dict[int, int] = {}
        self._jumps: list[tuple[int, int]] = []
        self._labels = 0

    def label(self) -> int:
        """A new label, which is placed later."""
        self._labels += 1
        return self._labels

    def place(self, label: int) -> None:
        """Let the label mean the next instruction."""
        self._places[label] = len(self._code)

    def data(self, content: bytes) -> int:
        """Add data; its address, which is a multiple of 8."""
        address = _DATA + len(self._data)
        self._data += content + bytes(-len(content) % 8)
        return address

    def call(self, name: str, *arguments: Argument) -> None:
        """Make a system call."""
        for index, argument in enumerate(arguments):
            self._set(index, argument)
        self._call(self.calls[name])

    def jump(self, label: int) -> None:
        """Go there."""
        self._jump_by(label, self._always)

    def jump_if_done(self, label: int) -> None:
        """Go there unless the last call has failed."""
        self._code += self._compare_to_zero
        self._jump_by(label, self._if_not_less)

    def jump_if(self, errno: int, label: int) -> None:
        """Go there if the last call has failed with that error."""
        self._code += self._compare_to_error(errno)
        self._jump_by(label, self._if_equal)

    def jump_if_positive(self, label: int) -> None:
        """Go there if the result of the last call is more than 0."""
        self._code += self._compare_to_zero
        self._jump_by(label, self._if_greater)

    def program(self) -> bytes:
        """The ELF file."""
        for at, label in self._jumps:
            self._aim(at, self._places[label] - at)
        text = _HEADERS + len(self._code)
        data = -(-text // _PAGE) * _PAGE
        sizes = (64, 56, 3, 0, 0, 0)  # of the header, of a segment's, their number, and no sections
        about = (b"\x7fELF\2\1\1", 2, self.machine, 1, _TEXT + _HEADERS, 64, 0, 0)
        head = struct.pack("<16sHHIQQQIHHHHHH", *about, *sizes)
        segments = (
            (_LOAD, _READ | _EXECUTE, 0, _TEXT, text),
            (_LOAD, _READ, data, _DATA, len(self._data)),
            (_GNU_STACK, _READ | _WRITE, 0, 0, 0),
        )
        for kind, flags, offset, address, size in segments:
            head += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, _PAGE)
        return (head + self._code).ljust(data, b"\0") + self._data

    def _jump_by(self, label: int, instruction: bytes) -> None:
        self._code += instruction
        self._jumps.append((len(self._code), label))
        self._code += self._target

    _always: bytes
    _if_equal: bytes
    _if_not_less: bytes
    _if_greater: bytes
    _compare_to_zero: bytes
    _target: bytes
    """Space for a jump's target behind its instruction."""

    @abstractmethod
    def keep_error(self, errno: int) -> None:
        """Remember an error, as a failed call's result would be."""

    @abstractmethod
    def recall_error(self) -> None:
        """Let the remembered error be the result of the last call."""

    @abstractmethod
    def _set(self, index: int, argument: Argument) -> None: ...

    @abstractmethod
    def _call(self, number: int) -> None: ...

    @abstractmethod
    def _compare_to_error(self, errno: int) -> bytes: ...

    @abstractmethod
    def _aim(self, at: int, distance: int) -> None:
        """Fill in a jump's target. at: where it is; distance: in bytes from there."""


class _Amd64(Assembler):
    machine = 62
    calls = {
        "read": 0, "write": 1, "close_range": 436, "ioctl": 16, "execve": 59, "chdir": 80, "setsid": 112,
        "setgroups": 116, "setresuid": 117, "setresgid": 119, "capset": 126, "prctl": 157, "keyctl": 250,
        "exit_group": 231,
    }  # fmt: skip
    _always, _if_equal, _if_not_less, _if_greater = b"\xe9", b"\x0f\x84", b"\x0f\x89", b"\x0f\x8f"  # jmp, je, jns, jg
    _compare_to_zero = b"\x48\x85\xc0"  # test rax, rax
    _target = bytes(4)
    _REGISTERS = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba")  # mov rdi, rsi, rdx, imm64
    _FROM_STACK = (b"\x48\x8d\xbc\x24", b"\x48\x8d\xb4\x24", b"\x48\x8d\x94\x24")  # lea rdi, rsi, rdx, [rsp + disp32]

    def _set(self, index: int, argument: Argument) -> None:
        if isinstance(argument, OnStack):
            self._code += self._FROM_STACK[index] + struct.pack("<i", argument.offset)
        else:
            self._code += self._REGISTERS[index] + struct.pack("<Q", argument)

    def _call(self, number: int) -> None:
        self._code += b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"  # mov eax, number; syscall

    def _compare_to_error(self, errno: int) -> bytes:
        return b"\x48\x3d" + struct.pack("<i", -errno)  # cmp rax, -errno

    def keep_error(self, errno: int) -> None:
        self._code += b"\x48\xc7\xc3" + struct.pack("<i", -errno)  # mov rbx, -errno

    def recall_error(self) -> None:
        self._code += b"\x48\x89\xd8"  # mov rax, rbx

    def _aim(self, at: int, distance: int) -> None:
        struct.pack_into("<i", self._code, at, distance - 4)


class _Arm64(Assembler):
    machine = 183
    calls = {
        "read": 63, "write": 64, "close_range": 436, "ioctl": 29, "execve": 221, "chdir": 49, "setsid": 157,
        "setgroups": 159, "setresuid": 147, "setresgid": 149, "capset": 91, "prctl": 167, "keyctl": 219,
        "exit_group": 94,
    }  # fmt: skip
    # The target is a part of the instruction: _aim adds it. cmp x0, #0 comes before the jump.
    _always = _if_equal = _if_not_less = _if_greater = b""
    _compare_to_zero = struct.pack("<I", 0xF100001F)
    _target = b""
    _B, _B_EQ, _B_GE, _B_GT = 0x14000000, 0x54000000, 0x5400000A, 0x5400000C
    _SCRATCH, _ERROR, _NUMBER, _SP = 9, 19, 8, 31

    def _word(self, instruction: int) -> None:
        self._code += struct.pack("<I", instruction)

    def jump(self, label: int) -> None:
        self._branch(self._B, label)

    def jump_if_done(self, label: int) -> None:
        self._code += self._compare_to_zero
        self._branch(self._B_GE, label)

    def jump_if(self, errno: int, label: int) -> None:
        self._code += self._compare_to_error(errno)
        self._branch(self._B_EQ, label)

    def jump_if_positive(self, label: int) -> None:
        self._code += self._compare_to_zero
        self._branch(self._B_GT, label)

    def _branch(self, instruction: int, label: int) -> None:
        self._jumps.append((len(self._code), label))
        self._word(instruction)

    def _load(self, register: int, value: int) -> None:
        for part in range(4):  # movz, then movk for the other quarters
            self._word(
                (0xF2800000 if part else 0xD2800000) | part << 21 | (value >> 16 * part & 0xFFFF) << 5 | register
            )

    def _set(self, index: int, argument: Argument) -> None:
        if isinstance(argument, OnStack):
            self._load(self._SCRATCH, argument.offset & (1 << 64) - 1)
            self._word(0x8B206000 | self._SCRATCH << 16 | self._SP << 5 | index)  # add xN, sp, x9
        else:
            self._load(index, argument)

    def _call(self, number: int) -> None:
        self._load(self._NUMBER, number)
        self._word(0xD4000001)  # svc #0

    def _compare_to_error(self, errno: int) -> bytes:
        return struct.pack("<I", 0xB100001F | errno << 10)  # cmn x0, #errno

    def keep_error(self, errno: int) -> None:
        self._load(self._ERROR, -errno & (1 << 64) - 1)

    def recall_error(self) -> None:
        self._word(0xAA0003E0 | self._ERROR << 16)  # mov x0, x19

    def _aim(self, at: int, distance: int) -> None:
        (instruction,) = struct.unpack_from("<I", self._code, at)
        if instruction == self._B:
            instruction |= distance // 4 & 0x3FFFFFF
        else:
            instruction |= (distance // 4 & 0x7FFFF) << 5
        struct.pack_into("<I", self._code, at, instruction)


MACHINES: dict[str, type[Assembler]] = {"x86_64": _Amd64, "aarch64": _Arm64}
"""By the name that os.uname() has for the machine."""


def assembler(machine: str) -> Assembler:
    """An assembler for a machine. Raises: UnsupportedError."""
    if machine not in MACHINES:
        raise UnsupportedError(f"containers are started on {' and '.join(MACHINES)} only: this machine is {machine}")
    return MACHINES[machine]()

"""Makes libraries to link against, so that what is linked loads with an older glibc and libstdc++.

Usage: old_libraries.py FOLDER [--glibc 2.28 --glibcxx 3.4.24 --cxxabi 1.3.11]. The folder then has libc,
libm, libpthread, libdl, librt and libstdc++ as the linker looks for them with -L FOLDER: stubs without code
that offer what the system's own libraries offer, in the newest version that the older ones had, and nothing
newer. A call of something newer is an error of the linker, not of the loader on a user's machine.

glibc keeps every old version of a symbol beside the new one (pthread_create is both GLIBC_2.2.5 and
GLIBC_2.34), so the system's libraries say all of it. What libstdc++ has got since then comes from
libstdc++.a, as it does with the compilers of Red Hat's toolsets. Rejected: zig c++, another compiler with
other code in the kernels; a sysroot of an old distribution, which has to be downloaded.
"""

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path

#: Where symbols lived until glibc 2.34 put them all into libc.
MOVED = {
    "libdl.so.2": re.compile(r"dl\w+$"),
    "librt.so.1": re.compile(r"(shm|mq|aio|lio|timer)_\w+$"),
    "libpthread.so.0": re.compile(r"(pthread|sem)_\w+$"),
}
TYPES = {"FUNC": "function", "IFUNC": "function", "OBJECT": "object", "TLS": "tls_object"}
Symbol = tuple[str, str, int]  # type, version, size


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("_")[-1].split(".")))


def file_of(name: str) -> Path:
    """Returns the path of a library of the system's compiler."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"old_libraries.py: g++ finds no {name}")
    return path.resolve()


def exported(library: Path, limits: dict[str, str]) -> dict[str, tuple[Symbol, bool]]:
    """Returns each symbol in the newest version within the limits, and whether a newer one of it is there."""
    listed = subprocess.run(
        ["readelf", "--dyn-syms", "-W", str(library)], capture_output=True, text=True, check=True
    )
    found: dict[str, list[Symbol]] = defaultdict(list)
    for line in listed.stdout.splitlines():
        parts = line.split()
        if len(parts) < 8 or parts[6] in ("UND", "ABS") or parts[3] not in TYPES:
            continue
        name, _, version = parts[7].replace("@@", "@").partition("@")
        family = version.rpartition("_")[0]
        if family in limits and re.fullmatch(r"[\d.]+", version.rpartition("_")[2]):
            found[name].append((TYPES[parts[3]], version, int(parts[2], 0)))
    kept = {}
    for name, symbols in found.items():
        within = [s for s in symbols if number(s[1]) <= number(limits[s[1].rpartition("_")[0]])]
        if within:
            newest = max(within, key=lambda symbol: number(symbol[1]))
            kept[name] = newest, len(within) < len(symbols)
    return kept


def write_stub(path: Path, symbols: dict[str, Symbol]) -> None:
    """Links a library with these symbols, all of them empty."""
    lines, versions = [], set()
    for place, (name, (kind, version, size)) in enumerate(sorted(symbols.items())):
        section = {"function": ".text", "object": ".data", "tls_object": '.section .tbss,"awT",@nobits'}[kind]
        lines += [section, f".globl s{place}", f".type s{place},@{kind}", f"s{place}: .zero {max(size, 1)}"]
        lines += [f".size s{place},{size}", f".symver s{place},{name}@@{version},remove"]
        versions.add(version)
    source, script = path.with_suffix(".s"), path.with_suffix(".map")
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
    script.write_text("".join(f"{version} {{ }};\n" for version in sorted(versions, key=number)))
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
    subprocess.run([*command, *([f"-Wl,--version-script,{script}"] if versions else [])], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--glibc", default="2.28")
    parser.add_argument("--glibcxx", default="3.4.24")
    parser.add_argument("--cxxabi", default="1.3.11")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stubs: dict[str, dict[str, Symbol]] = {name: {} for name in ("libc.so.6", *MOVED)}
    for name, (symbol, newer) in exported(file_of("libc.so.6"), {"GLIBC": given.glibc}).items():
        homes = (home for home, pattern in MOVED.items() if newer and pattern.match(name))
        stubs[next(homes, "libc.so.6")][name] = symbol
    for library in MOVED:  # before glibc 2.34 they have their symbols themselves
        for name, (symbol, _) in exported(file_of(library), {"GLIBC": given.glibc}).items():
            if not name.startswith("__lib"):
                stubs[library].setdefault(name, symbol)
    stubs["libm.so.6"] = {
        n: s for n, (s, _) in exported(file_of("libm.so.6"), {"GLIBC": given.glibc}).items()
    }
    loader = file_of("ld-linux-x86-64.so.2")
    stubs["ld-linux-x86-64.so.2"] = {n: s for n, (s, _) in exported(loader, {"GLIBC": given.glibc}).items()}
    limits = {"GLIBCXX": given.glibcxx, "CXXABI": given.cxxabi}
    stubs["libstdc++.so.6"] = {n: s for n, (s, _) in exported(file_of("libstdc++.so.6"), limits).items()}
    for name, symbols in stubs.items():
        write_stub(folder / name, symbols)
    for name in stubs:
        linked = folder / name.rpartition(".")[0]
        # As needed: what is linked names a library only where something of it is called.
        stubs_of = [folder / name]
        if name == "libc.so.6":
            stubs_of += [folder / other for other in (*MOVED, "ld-linux-x86-64.so.2")]
        archive = {"libc.so.6": "libc_nonshared.a", "libstdc++.so.6": "libstdc++.a"}.get(name)
        shared = " ".join(map(str, stubs_of))
        linked.write_text(f"INPUT ( AS_NEEDED ( {shared} ) {file_of(archive) if archive else ''} )\n")


if __name__ == "__main__":
    main()

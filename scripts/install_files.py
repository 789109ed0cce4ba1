"""Makes what an installation has beside the program: its man page and shell completions, from the program itself, a
software bill of materials (SPDX 2.3) of what is linked into it, and the changelog of the Debian package.

  install_files.py --program build/release/reprise --version 0.1.0 --out DIR
                   [--module libreprise_cuda.so --cudart 13.0] [--llhttp llhttp.h]

The same inputs give the same bytes: times come from SOURCE_DATE_EPOCH, which ./dev package sets.
"""
import argparse
import datetime
import email.utils
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess

# What NOTICE says of each library.
LICENSES = {"libuv": "MIT", "libjansson": "MIT", "libpcre2-8": "BSD-3-Clause", "libz": "Zlib", "libssl": "Apache-2.0",
            "libcrypto": "Apache-2.0", "libxxhash": "BSD-2-Clause", "libseccomp": "LGPL-2.1-only", "libllhttp": "MIT", "libc": "LGPL-2.1-or-later",
            "libm": "LGPL-2.1-or-later", "libstdc++": "GPL-3.0-or-later WITH GCC-exception-3.1",
            "libgcc_s": "GPL-3.0-or-later WITH GCC-exception-3.1"}
MAINTAINER = "the reprise authors <reprise@localhost>"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout


def write(path, content, mode="w"):
    with open(path, mode) as file:
        file.write(content)


def write_gzip(path, text):
    write(path, gzip.compress(text.encode(), 9, mtime=0), "wb")


def needed(path):
    """The sonames that a program or library asks the loader for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", "-W", path))


def paths_of(path):
    """Soname: file, as the loader finds it here."""
    return dict(re.findall(r"^\s*(\S+) => (\S+) \(", output("ldd", path), re.M))


def debian_package(path):
    """(package, version) of a file, or None where there is no dpkg or the file belongs to no package."""
    if not shutil.which("dpkg-query"):
        return None
    real = os.path.realpath(path)
    # A library in /usr/lib may be recorded as /lib, its folder before /usr was merged.
    for name in (real, real.removeprefix("/usr"), path):
        done = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            package = done.stdout.split(": ")[0].split(", ")[0]
            return package.split(":")[0], output("dpkg-query", "-W", "-f", "${Version}", package)
    return None


class Bill:
    """An SPDX 2.3 document: files that contain or need packages."""

    def __init__(self, version, created):
        self.document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
                         "name": f"reprise-{version}", "creationInfo": {
                             "created": created, "creators": ["Tool: scripts/install_files.py"]},
                         "packages": [], "relationships": []}
        self.add("reprise", version, "Apache-2.0")
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-reprise")

    def add(self, name, version, license_id, purl=None, comment=None):
        ref = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)
        known = next((package for package in self.document["packages"] if package["SPDXID"] == ref), None)
        if known:
            known["comment"] += f", {comment}"
        else:
            package = {"SPDXID": ref, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
                       "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": license_id,
                       "copyrightText": "NOASSERTION"}
            if comment:
                package["comment"] = comment
            if purl:
                package["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                            "referenceLocator": purl}]
            self.document["packages"].append(package)
        return ref

    def relate(self, one, kind, other):
        row = {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
        if row not in self.document["relationships"]:
            self.document["relationships"].append(row)

    def add_linked(self, path):
        """Every shared library that a file needs, by the package that it comes from on this machine."""
        files = paths_of(path)
        for soname in needed(path):
            if soname.startswith("ld-linux") or soname not in files:
                continue
            package = debian_package(files[soname])
            stem = re.sub(r"\.so.*", "", soname)
            license_id = LICENSES.get(stem, "NOASSERTION")
            if package:
                ref = self.add(package[0], package[1], license_id, f"pkg:deb/debian/{package[0]}@{package[1]}?arch=amd64",
                               f"{soname} of {os.path.basename(path)}")
            else:
                ref = self.add(stem, "NOASSERTION", license_id, None, f"{soname} of {os.path.basename(path)}")
            self.relate("SPDXRef-reprise", "DYNAMIC_LINK", ref)

    def text(self):
        content = json.dumps(self.document, indent=1, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:32]
        self.document["documentNamespace"] = f"urn:reprise:spdx:{digest}"
        return json.dumps(self.document, indent=1, sort_keys=True) + "\n"


def llhttp_version(header):
    with open(header, encoding="utf-8") as file:
        parts = dict(re.findall(r"#define LLHTTP_VERSION_(MAJOR|MINOR|PATCH) (\d+)", file.read()))
    return ".".join(parts[name] for name in ("MAJOR", "MINOR", "PATCH"))


def make_bill(args, created):
    bill = Bill(args.version, created)
    bill.add_linked(args.program)
    static = []
    if args.llhttp:
        version = llhttp_version(args.llhttp)
        static.append(("llhttp", version, "MIT", f"pkg:npm/llhttp@{version}"))
    static.append(("unicode-character-database", "16.0.0", "Unicode-3.0", None))
    if args.module:
        bill.add_linked(args.module)
        static.append(("cuda-runtime", args.cudart, "LicenseRef-NVIDIA-CUDA-EULA", None))
        bill.document["hasExtractedLicensingInfos"] = [{
            "licenseId": "LicenseRef-NVIDIA-CUDA-EULA", "name": "NVIDIA CUDA Toolkit End User License Agreement",
            "extractedText": "https://docs.nvidia.com/cuda/eula/"}]
    for row in static:
        bill.relate("SPDXRef-reprise", "STATIC_LINK", bill.add(*row))
    return bill.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--module")
    parser.add_argument("--cudart")
    parser.add_argument("--llhttp")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    when = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    write_gzip(f"{args.out}/reprise.1.gz", output(args.program, "help", "--man"))
    for shell in ("bash", "zsh"):
        write(f"{args.out}/completion.{shell}", output(args.program, "help", "--completion", shell))
    write(f"{args.out}/reprise.spdx.json", make_bill(args, when.strftime("%Y-%m-%dT%H:%M:%SZ")))
    write_gzip(f"{args.out}/changelog.gz",
               f"reprise ({args.version}) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources lists what changed.\n\n"
               f" -- {MAINTAINER}  {email.utils.format_datetime(when)}\n")


main()

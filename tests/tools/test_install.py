"""cmake --install lays out what the Debian package and the systemd unit rely on, and the installed program serves."""
import gzip
import json
import os
import re
import stat
import subprocess
import tempfile

import reprise_server
from reprise_server import BIN, SOURCE, Server, skip

BUILD = os.path.dirname(BIN)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def check_pages(root):
    program = f"{root}/usr/bin/reprise"
    with gzip.open(f"{root}/usr/share/man/man1/reprise.1.gz", "rt", encoding="utf-8") as file:
        assert file.read() == output(program, "help", "--man")
    for shell, path in (("bash", "bash-completion/completions/reprise"), ("zsh", "zsh/vendor-completions/_reprise")):
        assert read(root, "usr/share", path) == output(program, "help", "--completion", shell)


def check_layout(root):
    program = f"{root}/usr/bin/reprise"
    # The program looks for its CUDA module beside the file that the link names.
    assert os.readlink(program) == "../lib/reprise/reprise"
    beside = set(os.listdir(f"{root}/usr/lib/reprise"))
    module = {"libreprise_cuda.so"} & set(os.listdir(BUILD))
    assert beside == {"reprise"} | module, beside
    assert f"reprise {read(SOURCE, 'CMakeLists.txt').split('VERSION ')[2].split()[0]}\n" == output(program, "--version")
    doc = set(os.listdir(f"{root}/usr/share/doc/reprise"))
    assert doc == {"LICENSE", "NOTICE", "copyright", "changelog.gz", "reprise.spdx.json"}, doc
    for folder, _, names in os.walk(root):
        for name in names:
            mode = os.lstat(os.path.join(folder, name))
            assert stat.S_ISLNK(mode.st_mode) or not mode.st_mode & 0o022, (folder, name)
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", f"{SOURCE}/deploy/debian/{script}"], check=True)
    conffiles = read(SOURCE, "deploy/debian/conffiles").split()
    etc = [os.path.join(folder, name)[len(root):] for folder, _, names in os.walk(f"{root}/etc") for name in names]
    assert sorted(conffiles) == sorted(etc), (conffiles, etc)


def check_unit(root):
    unit = read(root, "usr/lib/systemd/system/reprise.service")
    value = dict(re.findall(r"^([A-Za-z]+)=(.*)$", unit, re.M))
    assert os.path.exists(root + value["ExecStart"].split()[0]), value["ExecStart"]
    assert os.path.exists(root + value["EnvironmentFile"].lstrip("-"))
    variable, model = re.search(r"^Environment=(\w+)=(.*)$", unit, re.M).groups()
    assert value["ExecStart"].endswith("serve ${%s}" % variable) and os.path.isdir(root + model), model
    user = re.search(r"^u +(\S+)", read(root, "usr/lib/sysusers.d/reprise.conf"), re.M).group(1)
    assert value["User"] == value["Group"] == user
    # Every variable of the settings is the unit's own or a flag's.
    flags = set(re.findall(r"^  --([a-z-]+)", output(f"{root}/usr/bin/reprise", "serve", "--help"), re.M))
    names = re.findall(r"^#?([A-Z_]+)=", read(root, "etc/default/reprise"), re.M)
    assert variable in names and len(names) > 3
    for name in set(names) - {variable}:
        assert name.removeprefix("REPRISE_").lower().replace("_", "-") in flags, name


def check_bill(root):
    bill = json.loads(read(root, "usr/share/doc/reprise/reprise.spdx.json"))
    assert bill["spdxVersion"] == "SPDX-2.3"
    packages = {package["SPDXID"]: package for package in bill["packages"]}
    links = {row["relationshipType"]: set() for row in bill["relationships"]}
    for row in bill["relationships"]:
        links[row["relationshipType"]].add(row["relatedSpdxElement"])
    assert set.union(*links.values()) == set(packages), "every package is related, every relation has its package"
    needed = set()
    for name in os.listdir(f"{root}/usr/lib/reprise"):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", f"{root}/usr/lib/reprise/{name}")))
    listed = set(re.findall(r"(\S+) of ", " ".join(packages[ref]["comment"] for ref in links["DYNAMIC_LINK"])))
    assert listed == {soname for soname in needed if not soname.startswith("ld-linux")}, (listed, needed)
    for package in packages.values():
        assert package["licenseDeclared"] != "NOASSERTION", package
        assert package["versionInfo"] not in ("", "NOASSERTION") or "externalRefs" not in package, package
    if not any(soname.startswith("libllhttp") for soname in needed):
        assert "SPDXRef-llhttp" in links["STATIC_LINK"]
    assert ("SPDXRef-cuda-runtime" in packages) == os.path.exists(f"{root}/usr/lib/reprise/libreprise_cuda.so")


def check_serves(root):
    reprise_server.BIN = f"{root}/usr/bin/reprise"
    with Server(f"{root}/usr/share/reprise/demo", "--device", "cpu", "--max-num-seqs", "2") as server:
        status, answer = server.post("/v1/completions", {"model": "demo", "prompt": "123 + 456 =", "temperature": 0,
                                                         "max_tokens": 8})
        assert status == 200 and "579" in answer["choices"][0]["text"], answer


def main():
    if any(name in os.path.basename(BUILD) for name in ("asan", "tsan")):
        skip("a build with sanitizers")
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr"], check=True, capture_output=True, timeout=120,
                       env=dict(os.environ, DESTDIR=root, SOURCE_DATE_EPOCH="1700000000"))
        check_layout(root)
        check_pages(root)
        check_unit(root)
        check_bill(root)
        check_serves(root)
    print("ok")


main()

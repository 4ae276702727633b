"""tools/explain_racecheck.py, on a loop of a kernel written down by hand: a store, a barrier, a load, a barrier, once more."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHOLE = "BAR.SYNC.DEFER_BLOCKING 0x0"
REPORT = """
========= Error: Race reported between Read access at combine(float*)+0x50 in experts.cuh:20
=========     and Write access at down(float*)+0x30 in experts.cuh:10 [32 hazards]
"""


def disassembly(first, second, loop="@P1 BRA 0x20"):
    lines = ["MOV R1, c[0x0][0x28]", WHOLE, "@!P0 BRA 0x40", "STS [R2], R3", first, "LDS R4, [R2]", second, loop, "EXIT"]
    return "\n\t\tFunction : kernel\n" + "".join(f"        /*{16 * i:04x}*/                   {line} ;\n" for i, line in enumerate(lines))


def explain(tmp_path, code, report=REPORT):
    (tmp_path / "report.txt").write_text(report)
    (tmp_path / "code.txt").write_text(code)
    cuobjdump = tmp_path / "cuobjdump"
    cuobjdump.write_text('#!/bin/sh\ncat "$2"\n')
    cuobjdump.chmod(0o755)
    command = [sys.executable, str(ROOT / "tools/explain_racecheck.py"), "--cuobjdump", str(cuobjdump), "--binary", str(tmp_path / "code.txt"),
               str(tmp_path / "report.txt")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr


def test_barriers_of_the_whole_cta_keep_accesses_apart(tmp_path):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE))
    assert code == 0 and "1 pairs of instructions kept apart" in output, output


def test_no_other_barrier_does(tmp_path):
    for first, second in [("NOP", WHOLE), (WHOLE, "NOP"), ("@P2 " + WHOLE, WHOLE), (WHOLE, "BAR.SYNC.DEFER_BLOCKING 0x1, 0x100"), (WHOLE, "WARPSYNC.ALL")]:
        code, output = explain(tmp_path, disassembly(first, second))
        assert code == 1 and "1 pairs of instructions NOT kept apart" in output, (first, second, output)


def test_the_last_access_of_a_kernel_needs_no_barrier_behind_it(tmp_path):
    code, output = explain(tmp_path, disassembly(WHOLE, "NOP", loop="NOP"))
    assert code == 0, output


def test_what_is_not_there_is_not_explained(tmp_path):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), REPORT.replace("0x30", "0x80"))
    assert code == 1 and "not found" in output, output
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), "RACECHECK SUMMARY: 0 hazards displayed")
    assert code == 1 and "0 pairs" in output, output

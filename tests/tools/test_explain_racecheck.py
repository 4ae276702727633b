"""tools/explain_racecheck.py, on a loop of a kernel written down by hand: a store, a barrier, a load, a barrier, once more."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHOLE = "BAR.SYNC.DEFER_BLOCKING 0x0"
RACE = """
========= Error: Race reported between Read access at combine(float*)+0x50 in experts.cuh:20
=========     and Write access at down(float*)+0x30 in experts.cuh:10 [32 hazards]
"""
SUMMARY = """
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
REPORT = RACE + SUMMARY


def kernel(lines, name="kernel"):
    return f"\n\t\tFunction : {name}\n" + "".join(f"        /*{16 * i:04x}*/                   {line} ;\n" for i, line in enumerate(lines))


def listing(first, second, loop="@P1 BRA 0x20", store="STS [R2], R3"):
    return ["MOV R1, c[0x0][0x28]", WHOLE, "@!P0 BRA 0x40", store, first, "LDS R4, [R2]", second, loop, "EXIT"]


def disassembly(first, second, **changed):
    return kernel(listing(first, second, **changed))


def run_tool(tool, tmp_path, code, *words):
    (tmp_path / "code.txt").write_text(code)
    cuobjdump = tmp_path / "cuobjdump"
    cuobjdump.write_text('#!/bin/sh\ncat "$2"\n')
    cuobjdump.chmod(0o755)
    command = [sys.executable, str(ROOT / "tools" / tool), "--cuobjdump", str(cuobjdump), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr


def explain(tmp_path, code, report=REPORT, *words):
    (tmp_path / "report.txt").write_text(report)
    return run_tool("explain_racecheck.py", tmp_path, code, *words, "--binary", str(tmp_path / "code.txt"), str(tmp_path / "report.txt"))


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
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    assert code == 1 and "0 pairs" in output, output


@pytest.mark.parametrize("store", ["LDGSTS.E.BYPASS.128 [R2], desc[UR4][R6.64]", "UBLKCP.S.G [UR4], [UR6], UR8"])
def test_no_barrier_ends_an_asynchronous_copy(tmp_path, store):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE, store=store))
    assert code == 1 and "not found" in output, output


# --- what a report says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "=========     and Atomic access at down(float*)+0x30 in experts.cuh:10 [32 hazards]",
        "=========     and Write access at down(float*) in experts.cuh:10 [32 hazards]",
        "========= Error: Race reported between Atomic access at combine(float*)+0x50 in experts.cuh:20",
    ],
)
def test_an_access_that_cannot_be_read_is_not_left_out(tmp_path, line):
    """Nor are the accesses below it paired with the report before."""
    below = "\n=========     and Write access at down(float*)+0x70 in experts.cuh:11" if "Race reported" in line else ""
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), RACE + line + below + SUMMARY)
    number = (RACE + line).count("\n") + 1
    assert code == 1 and f"line {number} can't be read: {line}" in output, output
    assert "\n1 pairs, 0 not kept apart" in output, output


def test_without_line_numbers_a_report_is_read_all_the_same(tmp_path):
    report = REPORT.replace(" in experts.cuh:10", "").replace(" in experts.cuh:20", "")
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), report)
    assert code == 0 and "combine(float*) and down(float*): 1 pairs of instructions kept apart" in output, output


def test_a_report_of_one_access_is_no_pair(tmp_path):
    begin = RACE.split("\n")[1]
    for report in (RACE + begin + SUMMARY, "\n" + begin + REPORT):
        code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), report)
        assert code == 1 and "one access only" in output and "\n1 pairs, 0 not" in output, output


@pytest.mark.parametrize("counts, missing", [("1 hazard displayed (54 errors, 0 warnings)", 53), ("1 hazard displayed (1 error, 2 warnings)", 2)])
def test_reports_that_were_not_printed_are_missed(tmp_path, counts, missing):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), RACE + f"\n========= RACECHECK SUMMARY: {counts}\n")
    assert code == 1 and f"{missing} reports were not printed" in output and "\n1 pairs, 0 not kept apart" in output, output


def test_a_run_that_was_cut_off_explains_nothing(tmp_path):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE), RACE)
    assert code == 1 and "the run didn't end" in output, output


# --- ways through the code ---------------------------------------------------------------------------------------------


def with_function(*function, store="CALL.REL.NOINC 0x90"):
    return kernel([*listing(WHOLE, WHOLE, store=store), *function])


def test_accesses_of_a_function_are_its_callers(tmp_path):
    report = REPORT.replace("0x30", "0x90")  # of the function, called before the barrier
    code, output = explain(tmp_path, with_function("STS [R2], R3", "RET.REL.NODEC R4 0x0"), report)
    assert code == 0 and "kept apart" in output, output
    code, output = explain(tmp_path, kernel([*listing("NOP", WHOLE, store="CALL.REL.NOINC 0x90"), "STS [R2], R3", "RET.REL.NODEC R4 0x0"]), report)
    assert code == 1 and "1 pairs of instructions NOT kept apart" in output, output


def test_a_function_with_a_barrier_is_refused(tmp_path):
    report = REPORT.replace("0x30", "0xa0")  # behind the function's barrier, before the load that follows the call
    code, output = explain(tmp_path, kernel([*listing("NOP", WHOLE, store="CALL.REL.NOINC 0x90"), WHOLE, "STS [R2], R3", "RET.REL.NODEC R4 0x0"]), report)
    assert code == 1 and "can't be walked: 0x90 BAR.SYNC" in output, output


@pytest.mark.parametrize("jump", ["BRX R4 -0x40", "JMX R4", "JMP 0x40", "CALL.REL.NOINC R4 0x0", "@P0 CALL.REL.NOINC 0x1230", "BRA `(.L_x_1)"])
def test_jumps_to_who_knows_where_are_refused(tmp_path, jump):
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE, loop=jump))
    assert code == 1 and f"can't be walked: 0x70 {jump.split()[-2 if jump[0] == '@' else 0]}" in output, output
    other = kernel([jump, "EXIT"], name="other")  # no report is of that kernel
    code, output = explain(tmp_path, disassembly(WHOLE, WHOLE) + other)
    assert code == 0, output


def test_two_kernels_with_such_accesses_are_ambiguous(tmp_path):
    """Even where both keep them apart: the report may be of either."""
    both = disassembly(WHOLE, WHOLE) + kernel(listing(WHOLE, WHOLE), name="other")
    code, output = explain(tmp_path, both)
    assert code == 1 and "ambiguous" in output and "--kernel" in output, output
    code, output = explain(tmp_path, both, REPORT, "--kernel", "other")
    assert code == 0, output


def test_what_is_assumed_of_the_source_is_said(tmp_path):
    """Two threads at two different BAR.SYNC 0x0 meet. The tool can't tell, so its description has to."""
    code, output = explain(tmp_path, "", REPORT, "--help")
    assert code == 0
    words = " ".join(output.split())
    assert "ASSUMED, and not checked here or by synccheck: all threads of a CTA take the same barriers" in words
    assert "Read the source" in words


# --- tools/check_sass.py, which has the same ways through the code ---------------------------------------------------------


def check_sass(tmp_path, lines):
    return run_tool("check_sass.py", tmp_path, kernel(lines), str(tmp_path / "code.txt"))


RUNNING = "HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def test_a_function_disturbs_a_wgmma_as_well(tmp_path):
    code, output = check_sass(tmp_path, [RUNNING, "CALL.REL.NOINC 0x40", WAIT, "EXIT", "MOV R9, R8", "RET.REL.NODEC R20 0x0"])
    assert code == 0 and "0 defects" in output, output
    code, output = check_sass(tmp_path, [RUNNING, "CALL.REL.NOINC 0x40", WAIT, "EXIT", "MOV R5, R8", "RET.REL.NODEC R20 0x0"])
    assert code == 1 and "touched at 0x40 MOV R5" in output, output


def test_a_wgmma_on_unknown_ways_is_a_defect(tmp_path):
    for lines in ([RUNNING, WAIT, "BRX R4 -0x40"], ["CALL.REL.NOINC 0x20", "EXIT", RUNNING, "RET.REL.NODEC R20 0x0"]):
        code, output = check_sass(tmp_path, lines)
        assert code == 1 and "can't be checked" in output, output
    code, output = check_sass(tmp_path, ["BRX R4 -0x40"])  # nothing to disturb
    assert code == 0, output


def test_a_kernel_whose_products_wait_for_one_another_is_told(tmp_path):
    in_a_group = RUNNING.replace(", gsb0", "")
    code, output = check_sass(tmp_path, [in_a_group, RUNNING, WAIT, in_a_group, RUNNING, WAIT, "EXIT"])
    assert code == 0, output
    code, output = check_sass(tmp_path, [RUNNING, WAIT, RUNNING, WAIT, "EXIT"])
    assert code == 1 and "makes each wgmma wait" in output and "1 defects" in output, output


def test_a_missing_report_or_tool_is_named(tmp_path):
    code, output = run_tool("explain_racecheck.py", tmp_path, disassembly(WHOLE, WHOLE), "--binary", "x", str(tmp_path / "no-report"))
    assert code == 1 and "no-report" in output and "Traceback" not in output, output
    (tmp_path / "report.txt").write_text(REPORT)
    words = ["--binary", "x", "--cuobjdump", str(tmp_path / "no-tool"), str(tmp_path / "report.txt")]
    code, output = run_tool("explain_racecheck.py", tmp_path, disassembly(WHOLE, WHOLE), *words)
    assert code == 1 and "no-tool" in output and "Traceback" not in output, output

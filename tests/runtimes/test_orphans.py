"""The fork server adopts what roles that die leave behind."""

import subprocess
import sys

ADOPTS = """
import os, resource, time
from pappus.runtimes.forkserver import _adopt_orphans, _end_all, _report_ended
from pappus.telemetry.usage import descendants
_adopt_orphans()
def role():
    if os.fork() == 0:  # the process of an env
        os.close(read)
        end = time.process_time() + 0.2
        while time.process_time() < end: pass
        os.write(write, b"1")
        {then}
    os._exit(1)
read, write = os.pipe()
child = os.fork()
if child == 0:
    role()
os.close(write)
os.read(read, 1)
{wait}
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime >= 0.2)
"""


def said(then: str, wait: str) -> str:
    code = ADOPTS.replace("{then}", then).replace("{wait}", wait)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_processes_of_envs_whose_role_died_are_waited_for_and_so_counted():
    wait = "while descendants(os.getpid()): _report_ended(None, {})"
    assert said("os._exit(0)", wait) == "True\n", "and are nobody's answer"


def test_those_that_live_at_the_end_of_the_run_are_ended():
    assert said("time.sleep(1000)", "_end_all()") == "True\n"

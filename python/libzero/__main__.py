"""python -m libzero plan ...: the programs that come with the package."""

import os
import sys

from .programs import NAMES, path_of

if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
    print(f"usage: python -m libzero {{{','.join(NAMES)}}} [OPTION...]", file=sys.stderr)
    sys.exit(2)
program = path_of(sys.argv[1])
os.execv(program, [program, *sys.argv[2:]])

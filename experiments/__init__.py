"""The paper's tables and figures, and the command that reproduces them."""

import signal
import sys

if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # A module is about to run as a command: Ctrl-C during its imports, which take seconds, ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""A permanent adversary: hostile input, killed processes, shifted seeds and mutants (``make fuzz``)."""

import sys
from pathlib import Path

# slow references and tiny files are those of the tests
if (_TESTS := str(Path(__file__).resolve().parent.parent / "tests")) not in sys.path:
    sys.path.append(_TESTS)

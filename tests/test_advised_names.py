"""What errors and pages advise exists after `import attnc`, in a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = (
    "attnc.frontends.mlp", "attnc.frontends.read_state_dict", "attnc.domain.Normed", "attnc.Tokens", "attnc.errors.InputError",
    "attnc.pretrained.report_of", "attnc.pretrained.save_converted", "attnc.pretrained.save.save_converted",
)  # fmt: skip


@pytest.mark.parametrize("first", [0, 5])
def test_advised_names_are_there(first: int) -> None:
    """Whichever is used first."""
    names = [*NAMES[first:], *NAMES[:first]]
    code = "import attnc\nassert 'torch' not in __import__('sys').modules\n" + "\n".join(names)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr

"""``python -m torchledger`` is ``torchledger``."""

from torchledger.cli import main

main()

"""The run file: records in, records out.

Enters: the records of ``torchledger.nouns``. Leaves: one SQLite file (a *ledger*) and the same records read back as
equals. Reading executes nothing from the file.
"""

from torchledger.store.ledger import LedgerReader, LedgerWriter, is_ledger, open_ledger
from torchledger.store.schema import SCHEMA_VERSION

__all__ = ["SCHEMA_VERSION", "LedgerReader", "LedgerWriter", "is_ledger", "open_ledger"]

"""The limits of a batch: the encoder cuts texts to them, and the decoder rejects what exceeds them."""

from __future__ import annotations

VERSION = 2  # 1 had no `number`; tests/test_records.py has the fields of the version
MAX_BODY = 1024 * 1024  # bytes of a batch
MAX_FRAME = 128 * 1024  # bytes of a batch without its records
MAX_RECORDS = 512
MAX_DEVICES = 128  # of a decision; the console shows no more
MAX_RESULTS = 32  # of a claim, as in the API
MAX_NAME = 256  # bytes of an API name; the API server allows 253
MAX_SENTENCE = 1024  # bytes of a sentence
MAX_DEVICE = 3 * MAX_NAME  # bytes of driver/pool/device
MAX_QUANTITY = 512  # characters; a quantity with a large exponent is written with hundreds of zeros
MAX_LIST = 64  # reasons, parts of a score, shapes of a mix, capacities
MAX_MIX = 100 * 1024  # bytes; a shape with 64 models of 256 bytes has less, also where JSON escapes them
MAX_HOLD = 86_400.0  # seconds; a policy allows at most 300
MAX_INT = 2**63 - 1

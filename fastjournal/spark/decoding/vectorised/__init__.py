"""Vectorised reader of the view ``records``: numpy over the bytes of a segment, to Arrow arrays.

Each value is that of the decoder of single records (``decoding.rows``), which still decodes
all records of a rare form, and is the oracle of the tests.
"""

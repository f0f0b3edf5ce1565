"""Vectorised reader of the view ``records``: numpy over the bytes of a segment, to Arrow arrays.

vectorised_reader  a segment in chunks, each an Arrow batch
frames, groups     records of a segment, and those that belong together
decode, columns    fields of many records; one function for each column
chunk              a batch that is made, with its rare forms

Each value is that of the decoder of single records (``decoding.rows``), which still decodes
all records of a rare form, and is the oracle of the tests.
"""

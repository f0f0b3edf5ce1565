"""Decoding: from the bytes of a segment to rows and columns.

``rows`` decodes one record after the other, ``vectorised`` a chunk at once (``byte_arrays``). Both
give the columns of ``view_columns``.
"""

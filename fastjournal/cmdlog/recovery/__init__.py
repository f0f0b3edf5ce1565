"""Recovery of the command log: scan, replay, damage report and repair.

scan           records of a segment; torn tail or damage
replay         the effect of each record, one by one or in blocks, on ``replay_state``
recover        all segments in order, as the daemon reads them
segment_chain  size and checksum of each segment, by the next one
inspect_log, inspect_archive, loss_report   what ``fj-cli log`` and an error say
repair         a log without its damage
"""

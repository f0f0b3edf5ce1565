"""Recovery of the command log: scan, replay, damage report and repair.

scan, segment_reader, segment_chain   records of a segment; torn tail or damage; whether it is whole
replay, record_replay, entry_blocks   the effect of records, one by one or in blocks
replay_state, replayed_entry, workq_jobs, value_budget   what is live, in bounded memory
recover        all segments in order, as the daemon reads them
inspect_log, inspect_archive, loss_report   what ``fj-cli log`` and an error say
repair, removals   a log without its damage
"""

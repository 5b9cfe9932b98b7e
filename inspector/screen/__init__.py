"""The vectorised twin of the detectors: rules over whole columns that a faultless history keeps, and no faulty one.

    columns.py     a chunk of events as columns
    details.py     the details of rows as matrices
    runs.py        rows sorted into runs of one block or sequence; values carried along a run
    plain.py       rows that only go on with what the row before them began: most rows, judged by their neighbours
    blocks.py      the rules of a block: lives, counts, places, slots, publication
    entries.py     table entries and leases: taken once, given back once, by the same holder
    sequences.py   the rules of a sequence: positions written before they are read, tables, ends
    screen.py      the chunks one after another, and what is known between them
    live.py        beside a run that goes on: look by look, in C row by row (live.c) where that was built
    whole.py       a whole trace, by the way that costs least; in C behind lost events as well

The screen may suspect what the detectors find in order; it never passes what they would report. Where it suspects
anything, the detectors replay the trace, so a check reports the same either way.
"""

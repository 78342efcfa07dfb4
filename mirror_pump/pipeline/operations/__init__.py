"""What a publish can do to a mirrored table: a closed set of operations, one module each.

Data flow:

    stream, copier, upkeep, folder ...      build operations, knowing nothing of the catalog's present state
      -> TableDelta(table, operations)      checks that they may be combined (combinations.py), and puts them in order
      -> PublishRequest(deltas)
    Stager    reads each table's registration, then for each operation
                fitting()   leaves out what came too late for the registration as it is now
                stage()     adds to the TablePlan: pure, no I/O
              writes the plan to the lake as one commit (mirror_pump.lake.commit.row_delta), visible to nobody
    Publisher in one transaction, for each table in order of table_id, for each operation
                lock()      takes locks that come before the registration's row
                describe()  makes the catalog say what the table is, before the lake's pointer moves
                complete()  marks what the lake has, behind the pointer

Staging, commit and publish are loops over these methods: none of them asks which operation it has in hand. A new
operation is a new module here, its row in `combinations.ORDER`, and its rows in `combinations.COMBINATIONS`.
"""

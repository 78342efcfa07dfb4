"""What a publish can do to a mirrored table: a closed set of operations, one module each.

Data flow:

    stream, copier, upkeep, folder ...      build operations without reading the catalog
      -> TableRequest(table, operations)    checks that they may be combined (combinations.py), and sorts them
      -> PublishRequest(tables)
    Stager    reads each table's registration, then calls for each operation
                fitting()   which leaves out what no longer applies to the registration
                stage()     which adds to the TablePlan, without I/O
              then writes the plan to the lake as one commit (mirror_pump.lake.commit.row_delta) that no reader sees yet
    Publisher calls in one transaction, for each table in order of table_id, for each operation
                lock()      before it locks the registration's row
                describe()  to update the table's description in the catalog, before the lake's pointer moves
                complete()  to record in the catalog what the lake holds, after the pointer has moved

Staging, commit and publish loop over these methods and never test for the type of an operation. A new operation needs a
module here, an entry in `combinations.ORDER`, and entries in `combinations.COMBINATIONS`.
"""

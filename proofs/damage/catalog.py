"""Damage to the catalog's rows, the slot, the publication, triggers, and rows of the heap."""

from __future__ import annotations

from proofs.damage.damage import DAMAGES, Damage, damage
from proofs.damage.small_mirror import SmallMirror

_ID = "'public.{}'::regclass::oid::bigint"
_ITEMS, _ORDERS, _EVENTS, _LEDGER = (_ID.format(name) for name in ("items", "orders", "events", "ledger"))


def _sql(thing: str, name: str, *statements: str, harmless: str = "", unknowable: str = "") -> None:
    """Damage by statements."""

    def apply(mirror: SmallMirror) -> None:
        mirror.execute(*statements)

    DAMAGES.append(Damage(thing, name, apply, harmless, unknowable))


_POINTER = "UPDATE modak.iceberg_tables SET metadata_location = {} WHERE table_name = 'items'"
_sql("pointer", "rolled back to the metadata before", _POINTER.format("previous_metadata_location"))
_sql("pointer", "another table's",
     _POINTER.format("(SELECT metadata_location FROM modak.iceberg_tables WHERE table_name = 'others')"))  # fmt: skip
_sql("pointer", "to a file that there is not", _POINTER.format("metadata_location || '.gone'"))
_sql("pointer", "NULL", _POINTER.format("NULL"))
_sql("pointer", "row gone", "DELETE FROM modak.iceberg_tables WHERE table_name = 'items'")
_sql(
    "pointer",
    "of another kind: a view",
    "UPDATE modak.iceberg_tables SET iceberg_type = 'VIEW' WHERE table_name = 'items'",
)
_sql("pointer", "the one before it forgotten", "UPDATE modak.iceberg_tables SET previous_metadata_location = NULL",
     harmless="a record for people; no commit and no reader uses it")  # fmt: skip
_sql("pointer", "of a feed rolled back",
     "UPDATE modak.iceberg_tables SET metadata_location = previous_metadata_location"
     " WHERE (table_namespace, table_name)"
     f" IN (SELECT namespace, name FROM modak.change_feeds WHERE feed_id = {_ORDERS})")  # fmt: skip
_sql("pointer", "properties of namespaces gone", "DELETE FROM modak.iceberg_namespace_properties",
     harmless="names of schemas; engines find those of tables by the tables, and init enters them again")  # fmt: skip

_SLOT = "UPDATE modak.mirror_slots SET "
_CUTLINE = "UPDATE modak.cutline SET {} WHERE table_id = {}"
_PUBLISHED = "the next publish writes the frontier of every table, within seconds of a pump's start"
_sql("frontier", "of the mirror raised", _SLOT + "applied_lsn = applied_lsn + 1000000")
_sql("frontier", "of the mirror lowered", _SLOT + "applied_lsn = applied_lsn - 2000")
_sql(
    "frontier",
    "of one table raised",
    _CUTLINE.format("replicated_lsn = replicated_lsn + 1000000", _ITEMS),
    harmless=_PUBLISHED,
)
_sql(
    "frontier",
    "of one table lowered",
    _CUTLINE.format("replicated_lsn = replicated_lsn - 2000", _ITEMS),
    harmless=_PUBLISHED,
)
_sql("frontier", "of one table NULL", _CUTLINE.format("replicated_lsn = NULL", _ITEMS), harmless=_PUBLISHED)
_sql("frontier", "row of the mirror gone", "DELETE FROM modak.mirror_slots")
_sql("frontier", "epoch of the leader lowered", _SLOT + "leader_epoch = leader_epoch - 1",
     harmless="the next leader's is one more, and no leader of the same number is left")  # fmt: skip
_sql("frontier", "number of the publish changed", _SLOT + "publish_id = publish_id + 5",
     harmless="it tells whether a COMMIT that is under way has landed, and none is")  # fmt: skip
_sql("frontier", "another cluster's", _SLOT + "system_identifier = '7000000000000000001'")
_sql("frontier", "another timeline", _SLOT + "timeline = timeline + 1")
_sql("frontier", "another database's", _SLOT + "database_name = 'elsewhere'")
_sql("frontier", "another publication's name", _SLOT + "publication_name = 'elsewhere'")

_sql("published snapshot", "its number wrong", _CUTLINE.format("lake_snapshot_id = 77", _ITEMS))
_sql("published snapshot", "of the archive: its number wrong", _CUTLINE.format("lake_snapshot_id = 77", _EVENTS))
_sql("published snapshot", "its metadata forgotten", _CUTLINE.format("lake_props = '{}'", _EVENTS))
_sql("published snapshot", "its metadata another table's",
     f"UPDATE modak.cutline SET lake_props = (SELECT lake_props FROM modak.cutline WHERE table_id = {_LEDGER})"
     f" WHERE table_id = {_EVENTS}")  # fmt: skip
_sql("cut-line", "raised", _CUTLINE.format("tier_key_hi = 300", _EVENTS))
_sql("cut-line", "lowered", _CUTLINE.format("tier_key_hi = 100", _EVENTS))
_sql("cut-line", "of a tiered table raised", _CUTLINE.format("tier_key_hi = 400", _LEDGER))
_sql("cut-line", "of a tiered table lowered", _CUTLINE.format("tier_key_hi = 100", _LEDGER))
_sql("cut-line", "of a plain table set", _CUTLINE.format("tier_key_hi = 20", _ITEMS))
_sql(
    "cut-line",
    "a retention line that there was not",
    _CUTLINE.format("retention_line = 100", _LEDGER),
    unknowable="a table whose lake retention was given up has a line as well",
)
_sql("cut-line", "row gone", f"DELETE FROM modak.cutline WHERE table_id = {_EVENTS}")

_DESCRIBED = "with the next change the pump finds another definition, and copies the table again"
_TABLE = "UPDATE modak.mirror_tables SET {} WHERE table_id = {}"
_sql("registration", "state failed, without a reason", _TABLE.format("state = 'failed'", _ITEMS))
_sql("registration", "state dropped", _TABLE.format("state = 'dropped'", _ITEMS))
_sql(
    "registration",
    "state copying",
    _TABLE.format("state = 'copying'", _ITEMS),
    harmless="all chunks of its copy are done: the pump makes it live again",
)
_sql("registration", "start position raised", _TABLE.format("start_lsn = start_lsn + 100000000", _ITEMS))
_sql(
    "registration",
    "position of going live raised",
    _TABLE.format("live_after_lsn = start_lsn + 100000000", _ITEMS),
    harmless="reads of the past alone ask for it, and are refused",
)
_sql(
    "registration",
    "sequence number of its copy raised",
    _TABLE.format("start_sequence = start_sequence + 100", _ITEMS),
    harmless="files of a copy that is under way are numbered by it",
)
_sql("registration", "location another table's",
     "UPDATE modak.mirror_tables SET location = (SELECT location || '/x' FROM modak.mirror_tables"
     f" WHERE table_id = {_ORDERS}) WHERE table_id = {_ITEMS}")  # fmt: skip
_sql(
    "registration",
    "columns without one",
    _TABLE.format("columns = columns - 2", _ITEMS),
    harmless=_DESCRIBED,
)
_sql("registration", "field IDs of two columns exchanged",
     _TABLE.format("columns = jsonb_set(jsonb_set(columns, '{1,field_id}', columns #> '{2,field_id}'),"
                   " '{2,field_id}', columns #> '{1,field_id}')", _ITEMS))  # fmt: skip
_sql("registration", "another key", _TABLE.format("key = '{n}'", _ITEMS), harmless=_DESCRIBED)
_sql("registration", "no key", _TABLE.format("key = '{}'", _ITEMS), harmless=_DESCRIBED)
_sql(
    "registration",
    "next field ID lowered",
    _TABLE.format("next_field_id = 1", _ITEMS),
    harmless="a column that is added gets an ID beyond those of the lake table",
)
_sql("registration", "shape forgotten", _TABLE.format("shape = NULL", _ITEMS))
_sql(
    "registration",
    "head of the lake table forgotten",
    _TABLE.format("lake_head = NULL", _ITEMS),
    harmless="the pump examines the lake table again, as after a commit of another engine",
)
_sql("registration", "ranges that are kept invented",
     _TABLE.format("kept_ranges = '{[200, 300)}'", _EVENTS),
     unknowable="rows that the owner took out of the heap, and the lake keeps, look alike")  # fmt: skip
_sql("registration", "row in mirror_tables gone", f"DELETE FROM modak.mirror_tables WHERE table_id = {_ITEMS}")
_sql("registration", "row in tables gone", f"DELETE FROM modak.tables WHERE table_id = {_ITEMS}")
_sql(
    "registration",
    "key columns in tables changed",
    f"UPDATE modak.tables SET primary_key_cols = '{{n}}' WHERE table_id = {_ITEMS}",
    harmless="corrections alone are read by it, and the table has none",
)
_sql(
    "registration",
    "tier key changed",
    f"UPDATE modak.tables SET tier_key_col = 'id' WHERE table_id = {_EVENTS}",
    unknowable="a column that was renamed looks alike until the pump has applied that",
)
_sql(
    "registration",
    "name changed",
    f"UPDATE modak.tables SET table_name = 'things' WHERE table_id = {_ITEMS}",
    harmless="the pump follows the name in the database, as after a rename",
)
_sql("registration", "lake table another's",
     f"UPDATE modak.tables SET lake_table_ref = 'public.others' WHERE table_id = {_ITEMS}",
     f"UPDATE modak.mirror_tables SET lake_table = 'others' WHERE table_id = {_ITEMS}")  # fmt: skip
_sql("registration", "noted shape gone", f"DELETE FROM modak.mirror_shapes WHERE table_id = {_ITEMS}")
_sql("registration", "secret of notes gone", "DELETE FROM modak.mirror_secret")
_sql("registration", "secret of notes changed", "UPDATE modak.mirror_secret SET secret = 'another'",
     harmless="notes that are made from now on are signed with it, and none is under way")  # fmt: skip
_sql("registration", "a chunk of its copy not done", "UPDATE modak.copy_chunks SET done_at = NULL",
     harmless="the table is live, and its chunks are of a copy that has ended")  # fmt: skip
_sql("registration", "warehouse changed", "UPDATE modak.storage_profiles SET warehouse = warehouse || '/elsewhere'")
_sql(
    "registration", "version of the catalog raised", "INSERT INTO modak.mirror_migrations VALUES (9000, '9000_unknown')"
)
_sql("registration", "version of the catalog lowered", "DELETE FROM modak.mirror_migrations WHERE version > 20")
_sql("registration", "a function of the catalog replaced",
     "CREATE OR REPLACE FUNCTION modak.mirror_shape_broken() RETURNS int LANGUAGE sql AS 'SELECT 1'",
     "UPDATE modak.mirror_functions SET checksum = 'x'"
     " WHERE file = (SELECT min(file) FROM modak.mirror_functions)")  # fmt: skip

_ATTACHED = "the pump enters the partitions that are attached, with their bounds"
_PROVEN = "it is proven again before it may be dropped"
_PARTITION = "UPDATE modak.partitions SET {} WHERE partition_id = 'public.{}'"
_sql(
    "partition",
    "dropped: hot again",
    _PARTITION.format("state = 'hot'", "events_0"),
    harmless="the pump finds that it is not attached, and notes again that it left",
)
_sql(
    "partition",
    "dropped: row gone",
    "DELETE FROM modak.partitions WHERE partition_id = 'public.events_0'",
    harmless="a record for people",
)
_sql(
    "partition",
    "in the heap: said to be dropped",
    _PARTITION.format("state = 'dropped'", "events_2"),
    harmless=_ATTACHED,
)
_sql(
    "partition",
    "in the heap: row gone",
    "DELETE FROM modak.partitions WHERE partition_id = 'public.events_2'",
    harmless=_ATTACHED,
)
_sql("partition", "bounds changed", _PARTITION.format("tier_key_lo = 150", "ledger_1"), harmless=_ATTACHED)
_sql(
    "partition",
    "proof forgotten",
    _PARTITION.format("proven_at = NULL, proven_as = NULL", "ledger_1"),
    harmless=_PROVEN,
)
_sql("partition", "proof of another attachment", _PARTITION.format("proven_as = '1'", "ledger_1"), harmless=_PROVEN)
_sql(
    "partition",
    "of a tiered table: row gone",
    "DELETE FROM modak.partitions WHERE partition_id = 'public.ledger_1'",
    harmless=_ATTACHED,
)
_sql("partition", "of a tiered table: hot again", _PARTITION.format("state = 'hot'", "ledger_1"))
_CORRECTIONS = "nothing else has it: restore modak.delta from a backup"
_sql("correction", "gone", "DELETE FROM modak.delta", unknowable=_CORRECTIONS)
_sql(
    "correction",
    "its row changed",
    "UPDATE modak.delta SET payload = jsonb_set(payload, '{v}', '\"other\"')",
    unknowable=_CORRECTIONS,
)
_sql("correction", "of a row above the cut-line invented",
     "INSERT INTO modak.delta SELECT (jsonb_populate_record(d, jsonb_build_object('pk', '350' || chr(31) || '3',"
     " 'tier_key', 350, 'payload',"
     " '{\"at\": 350, \"id\": 3, \"v\": \"x\"}'::jsonb))).* FROM modak.delta d LIMIT 1",
     harmless="readers pass over it")  # fmt: skip
_sql("correction", "said to be in the lake", "UPDATE modak.delta SET folded_sequence = 1", unknowable=_CORRECTIONS)

_sql(
    "change feed",
    "row gone",
    "DELETE FROM modak.change_feeds",
    unknowable="a lake table that no row names may be another program's",
)
_sql(
    "change feed",
    "said to have expired",
    "UPDATE modak.change_feeds SET expired_lsn = 9000000000",
    harmless="readers of the feed are told that its changes have expired",
)
_sql(
    "change feed",
    "its beginning changed",
    "UPDATE modak.change_feeds SET begins_lsn = begins_lsn - 100000",
    unknowable="nothing else says where a feed begins",
)
_sql("change feed", "an error that there is not", "UPDATE modak.change_feeds SET error = 'odd'")
_sql(
    "change feed",
    "mode changed",
    "UPDATE modak.change_feeds SET mode = 'keys'",
    unknowable="a feed of the other mode has the same columns",
)
_sql(
    "change feed",
    "head forgotten",
    "UPDATE modak.change_feeds SET head = NULL",
    harmless="the pump examines the feed again, as after a commit of another engine",
)
_RECEIPT = "a receipt that is kept elsewhere tells: `moment check --receipt`"
_sql("moment", "its frontier changed", "UPDATE modak.moments SET frontier = frontier + 5000", unknowable=_RECEIPT)
_sql("moment", "a table's row gone", f"DELETE FROM modak.moment_tables WHERE table_id = {_ITEMS}",
     unknowable=_RECEIPT)  # fmt: skip
_sql("moment", "its row gone", "DELETE FROM modak.moments", unknowable=_RECEIPT)
_sql("moment", "a snapshot's number wrong", f"UPDATE modak.moment_tables SET snapshot_id = 5 WHERE table_id = {_ITEMS}",
     unknowable=_RECEIPT)  # fmt: skip
_sql("moment", "a table's metadata another table's",
     "UPDATE modak.moment_tables SET (metadata_location, main_location) = (SELECT metadata_location, main_location"
     " FROM modak.moment_tables m JOIN modak.tables t USING (table_id) WHERE t.table_name = 'others')"
     f" WHERE table_id = {_ITEMS}", unknowable=_RECEIPT)  # fmt: skip
_sql("reader", "pins gone", "DELETE FROM modak.read_pin_rows", harmless="none is held")

_sql("publication", "gone", "DROP PUBLICATION shop")
_sql("publication", "without a table", "ALTER PUBLICATION shop DROP TABLE items")
_sql(
    "publication",
    "without a column",
    "ALTER PUBLICATION shop DROP TABLE items",
    "ALTER PUBLICATION shop ADD TABLE items (id, v)",
)
_sql("publication", "with a row filter", "ALTER PUBLICATION shop DROP TABLE items",
     "ALTER PUBLICATION shop ADD TABLE items WHERE (id < 1000)")  # fmt: skip
_sql("publication", "without deletes", "ALTER PUBLICATION shop SET (publish = 'insert, update')")
_sql("publication", "not by the root of partitions", "ALTER PUBLICATION shop SET (publish_via_partition_root = false)")
_sql("replica identity", "nothing", "ALTER TABLE items REPLICA IDENTITY NOTHING")
_sql("replica identity", "full", "ALTER TABLE items REPLICA IDENTITY FULL",
     harmless="more of each old row is sent than is needed")  # fmt: skip
_WATCHED = "the pump installs it again, and compares the partition with the lake before it may be dropped"
_sql("trigger", "of a partition disabled", "ALTER TABLE ledger_1 DISABLE TRIGGER ALL", harmless=_WATCHED)
_sql("trigger", "of a partition dropped",
     "DO $$ DECLARE r record; BEGIN FOR r IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'ledger_1'::regclass"
     " AND NOT tgisinternal"
     " LOOP EXECUTE format('DROP TRIGGER %I ON ledger_1', r.tgname); END LOOP; END $$",
     harmless=_WATCHED)  # fmt: skip
_sql("trigger", "of events disabled",
     "DO $$ DECLARE r record; BEGIN FOR r IN SELECT evtname FROM pg_event_trigger"
     " LOOP EXECUTE format('ALTER EVENT TRIGGER %I DISABLE', r.evtname); END LOOP; END $$")  # fmt: skip
_sql("trigger", "of events dropped",
     "DO $$ DECLARE r record; BEGIN FOR r IN SELECT evtname FROM pg_event_trigger"
     " LOOP EXECUTE format('DROP EVENT TRIGGER %I', r.evtname); END LOOP; END $$")  # fmt: skip
_ALWAYS = "the trigger of the partition fires in such a session, too"
_sql("heap", "a row changed behind the triggers, of a partition that the lake holds",
     "UPDATE ledger SET v = 'behind' WHERE (at, id) = (50, 3)",
     "UPDATE model_ledger SET v = 'behind' WHERE (at, id) = (50, 3)", harmless=_ALWAYS)  # fmt: skip
_sql("heap", "a row deleted behind the triggers, of a partition that the lake holds",
     "DELETE FROM ledger WHERE (at, id) = (50, 3)",
     "DELETE FROM model_ledger WHERE (at, id) = (50, 3)", harmless=_ALWAYS)  # fmt: skip
_sql("heap", "a row changed behind users' triggers",
     "UPDATE items SET n = -1 WHERE id = 9", "UPDATE model_items SET n = -1 WHERE id = 9",
     harmless="the stream has it")  # fmt: skip


def _with_slot(name: str, *statements: str, harmless: str = "") -> None:
    """Damage of the slot, which is no part of a transaction."""

    def apply(mirror: SmallMirror) -> None:
        mirror.change(3)
        with mirror.database.session() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    DAMAGES.append(Damage("slot", name, apply, harmless))


_DROP = "SELECT pg_drop_replication_slot('shop')"
_with_slot("gone", _DROP)
_with_slot("made again", _DROP, "SELECT pg_create_logical_replication_slot('shop', 'pgoutput')")
_with_slot("advanced", "SELECT pg_replication_slot_advance('shop', pg_current_wal_lsn())")
_with_slot("of another plugin", _DROP, "SELECT pg_create_logical_replication_slot('shop', 'test_decoding')")
_with_slot("a physical one", _DROP, "SELECT pg_create_physical_replication_slot('shop')")


@damage("heap", "a row changed below the heap, where no trigger and no stream is")
def _pages(mirror: SmallMirror) -> None:
    """Bytes of the table's file, as a disk or a bad restore changes them."""
    path = mirror.value("SELECT pg_relation_filepath('items')")
    mirror.database.reconnect()
    mirror.server.stop()
    file = mirror.server.directory / "data" / path
    content = file.read_bytes()
    assert b"v13" in content
    file.write_bytes(content.replace(b"v13", b"v77"))
    mirror.server.start()

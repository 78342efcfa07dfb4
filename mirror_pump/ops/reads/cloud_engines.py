"""Engines that a cloud runs: by which ways each reads the lake's tables, what it reads of them, and its statements.

All of it is from their documentation (docs/cloud-engines/ has the addresses): no service was asked. An engine is an
entry of CLOUD_ENGINES, which `connect`, its refusals and remarks, and the table of docs/cloud-engines/ use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from decoders.columns import Kind
from mirror_pump.database.quoting import identifier, literal, spark_identifier, spark_literal
from mirror_pump.ops.reads.catalog_snippets import python_text
from mirror_pump.ops.reads.engine_answers import EngineAnswers, Feature, FeatureAnswer, Verdict

READ_ON = "2026-11-26"
"""When the documentation was read."""


class Way(StrEnum):
    """How an engine learns of a table's newest metadata file."""

    REST = "REST door"
    """`mirror-pump serve`."""
    FOLLOWER = "follower"
    """A catalog into which each publish is registered."""
    FILE = "metadata file"
    """A statement names it, again for each newer state."""
    FOLDER = "folder"
    """The engine takes what it sees in the table's directory."""


@dataclass(frozen=True)
class CloudEngine(EngineAnswers):
    """One engine. A format version without an entry in `answers` is not read; a feature without one: its documentation
    was not seen to say anything."""

    ways: tuple[Way, ...]
    schemes: tuple[str, ...]
    """Of locations that it can reach."""
    only_own_s3: bool = False
    """Whether an object store of another maker, at an endpoint, is out of its reach."""
    types: Mapping[Kind, str] = field(default_factory=dict)
    """What becomes of values, where it is not what the lake has."""
    statements: Mapping[Way, str] = field(default_factory=dict)
    """What `connect` prints, with the fields of cloud_statements(). Empty: it is set up in a console."""
    quote_name: Callable[[str], str] = identifier
    quote_text: Callable[[str], str] = spark_literal
    """A backslash begins an escape in texts of most."""


@dataclass(frozen=True)
class LakeNames:
    """What statements name."""

    namespace: str
    table: str
    root: str
    """The warehouse's URI, without a slash at its end."""
    metadata_location: str
    uri: str = ""
    """Of the REST door."""
    attached: str = ""
    """What is attached there."""


def cloud_statements(engine: CloudEngine, way: Way, names: LakeNames) -> str:
    """The statements to paste. Each field is quoted by the rules of the engine."""
    within = names.metadata_location.removeprefix(names.root + "/")
    key = ", ".join(python_text(name.lower()) for name in (names.namespace, names.table))
    return engine.statements[way].format(
        namespace=engine.quote_name(names.namespace),
        table=engine.quote_name(names.table),
        namespace_text=engine.quote_text(names.namespace),
        root=engine.quote_text(names.root),
        metadata=engine.quote_text(names.metadata_location),
        metadata_within=engine.quote_text(within),
        uri=engine.quote_text(names.uri),
        attached=engine.quote_text(names.attached),
        python_key=f"({key})",
        python_metadata=python_text(names.metadata_location),
    )


def _bigquery_identifier(name: str) -> str:
    """The table is made anew there, so characters that its names cannot have become underscores."""
    return "`" + re.sub(r"[^\w -]", "_", name) + "`"


def _of_glue(quote: Callable[[str], str]) -> Callable[[str], str]:
    """Glue stores names in lower case."""
    return lambda name: quote(name.lower())


_READ = FeatureAnswer(Verdict.EXACT)


def _no(text: str) -> FeatureAnswer:
    return FeatureAnswer(Verdict.REFUSED, text)


def _equality(answer: FeatureAnswer) -> dict[Feature, FeatureAnswer]:
    return {Feature.EQUALITY_DELETES: answer, Feature.GLOBAL_DELETES: answer}


_STALE = _no("it goes on showing the last snapshot before them, without an error, or fails with 091968")
_DELETES_OF_3 = _no("of deletes it reads the vectors of version 3 only")
_UUID_NOT_LISTED = {Kind.UUID: "is not among the types that it reads"}

_SNOWFLAKE_REST = """\
-- In place of what is in angle brackets: the token of `mirror-pump serve`, and an external volume that reads the lake.
CREATE CATALOG INTEGRATION lake_catalog
  CATALOG_SOURCE = ICEBERG_REST
  TABLE_FORMAT = ICEBERG
  REST_CONFIG = (
    CATALOG_URI = {uri}
    CATALOG_NAME = {attached}
    ACCESS_DELEGATION_MODE = EXTERNAL_VOLUME_CREDENTIALS
  )
  REST_AUTHENTICATION = (TYPE = BEARER BEARER_TOKEN = '<token>')
  ENABLED = TRUE;
SELECT SYSTEM$VERIFY_CATALOG_INTEGRATION('LAKE_CATALOG');
CREATE DATABASE lake
  LINKED_CATALOG = (CATALOG = 'LAKE_CATALOG', ALLOWED_WRITE_OPERATIONS = NONE)
  EXTERNAL_VOLUME = '<volume>'
  CATALOG_CASE_SENSITIVITY = CASE_SENSITIVE;
SELECT * FROM lake.{namespace}.{table} LIMIT 10;"""

_SNOWFLAKE_FILE = """\
-- In place of <volume>: an external volume whose base is the warehouse.
-- The table stays as it is in this file. Run `connect` again for the newest one, and then the second statement.
CREATE CATALOG INTEGRATION lake_files CATALOG_SOURCE = OBJECT_STORE TABLE_FORMAT = ICEBERG ENABLED = TRUE;
CREATE OR REPLACE ICEBERG TABLE {table}
  EXTERNAL_VOLUME = '<volume>'
  CATALOG = 'LAKE_FILES'
  METADATA_FILE_PATH = {metadata_within};
SELECT * FROM {table} LIMIT 10;"""

_GLUE = """\
-- First register the file in AWS Glue, in Python with pyiceberg[glue,pyarrow]:
--   glue = pyiceberg.catalog.load_catalog("glue", type="glue")
--   glue.register_table({python_key}, {python_metadata})
-- The table stays as it is in this file. For a newer one drop_table({python_key}) there, and register that.
"""

_DATABRICKS = f"""\
{_GLUE}-- In place of what is in angle brackets: Glue's region and account, a service credential for it, and a location
-- for what Databricks stores.
CREATE CONNECTION lake_glue TYPE glue
  OPTIONS (aws_region '<region>', aws_account_id '<account>', credential '<credential>');
CREATE FOREIGN CATALOG lake USING CONNECTION lake_glue
  OPTIONS (authorized_paths {{root}}, storage_root '<location>');
REFRESH FOREIGN TABLE lake.{{namespace}}.{{table}};
SELECT * FROM lake.{{namespace}}.{{table}} LIMIT 10;"""

_ATHENA = f"""\
{_GLUE}-- DROP TABLE in Athena deletes the files of an Iceberg table: let its roles read the bucket and no more.
SELECT * FROM "AwsDataCatalog".{{namespace}}.{{table}} LIMIT 10;"""

_REDSHIFT = f"""\
{_GLUE}-- In place of <role>: the ARN of a role that may read Glue and the lake.
CREATE EXTERNAL SCHEMA lake FROM DATA CATALOG DATABASE {{namespace_text}} IAM_ROLE '<role>';
SELECT * FROM lake.{{table}} LIMIT 10;"""

_BIGQUERY = """\
-- In place of what is in angle brackets: your project, a dataset, and a connection that may read the lake.
-- The table stays as it is in this file, until maintenance deletes it. Run `connect` and this again for the newest one.
CREATE OR REPLACE EXTERNAL TABLE `<project>`.`<dataset>`.{table}
  WITH CONNECTION `<project>.<region>.<connection>`
  OPTIONS (format = 'ICEBERG', uris = [{metadata}]);
SELECT * FROM `<project>`.`<dataset>`.{table} LIMIT 10;"""

_ENGINES = (
    CloudEngine(
        "snowflake",
        "Snowflake",
        {
            2: {Feature.POSITION_DELETES: _READ, **_equality(_STALE)},
            3: {
                Feature.VECTORS: _READ,
                Feature.UPGRADED: _no("in version 3 it reads no position deletes: wait until the pump has merged them"),
                Feature.DEFAULTS: _READ,
                Feature.VARIANT: _READ,
                **_equality(_STALE),
            },
        },
        (Way.REST, Way.FOLLOWER, Way.FILE),
        ("s3", "gs", "abfss"),
        statements={Way.REST: _SNOWFLAKE_REST, Way.FILE: _SNOWFLAKE_FILE},
    ),
    CloudEngine(
        "databricks",
        "Databricks",
        {
            2: {Feature.POSITION_DELETES: _DELETES_OF_3, **_equality(_DELETES_OF_3)},
            3: {
                Feature.VECTORS: _READ,
                Feature.UPGRADED: _DELETES_OF_3,
                Feature.DEFAULTS: _no("it has no initial defaults"),
                Feature.VARIANT: _READ,
                **_equality(_DELETES_OF_3),
            },
        },
        (Way.FILE, Way.FOLLOWER),
        ("s3",),
        only_own_s3=True,
        types={Kind.UUID: "is among the types that it does not read"},
        statements={Way.FILE: _DATABRICKS},
        quote_name=_of_glue(spark_identifier),
    ),
    CloudEngine(
        "athena",
        "Amazon Athena",
        {2: {Feature.POSITION_DELETES: _READ}},
        (Way.FILE, Way.FOLLOWER),
        ("s3",),
        only_own_s3=True,
        types=_UUID_NOT_LISTED,
        statements={Way.FILE: _ATHENA},
        quote_name=_of_glue(identifier),
    ),
    CloudEngine(
        "redshift",
        "Amazon Redshift",
        {
            2: {Feature.POSITION_DELETES: _READ},
            3: {
                Feature.LISTS: _no("it reads no lists in version 3"),
                Feature.VECTORS: _READ,
                Feature.UPGRADED: _READ,
                Feature.LINEAGE: _READ,
                Feature.DEFAULTS: _READ,
                Feature.VARIANT: _no("it reads no variants"),
            },
        },
        (Way.FILE, Way.FOLLOWER),
        ("s3",),
        only_own_s3=True,
        types={
            Kind.STRING: "loses what is beyond 16,384 characters, without an error",
            Kind.BINARY: "becomes varbyte(64000), and is not read in version 3",
            **_UUID_NOT_LISTED,
        },
        statements={Way.FILE: _REDSHIFT},
        quote_name=_of_glue(identifier),
        quote_text=_of_glue(literal),
    ),
    CloudEngine(
        "bigquery",
        "BigQuery",
        {
            2: {Feature.POSITION_DELETES: _READ, **_equality(_READ)},
            3: {
                Feature.VECTORS: _READ,
                Feature.DEFAULTS: _no("it has no initial defaults"),
                Feature.VARIANT: _no("it has no variants of Iceberg's"),
                **_equality(_READ),
            },
        },
        (Way.FILE, Way.FOLLOWER),
        ("gs", "s3"),
        only_own_s3=True,
        types={Kind.UUID: "becomes BYTES"},
        statements={Way.FILE: _BIGQUERY},
        quote_name=_bigquery_identifier,
    ),
    CloudEngine(
        "fabric",
        "Microsoft Fabric",
        {2: {}, 3: {}},
        (Way.FOLDER,),
        ("abfss", "s3", "gs"),
        types={
            Kind.TIMESTAMP: "becomes timestamp_ntz, which not every part of it reads",
            Kind.LIST: "is not among the types that it converts",
            Kind.UUID: "is not among the types that it converts",
        },
    ),
)

CLOUD_ENGINES: Mapping[str, CloudEngine] = {engine.engine: engine for engine in _ENGINES}
"""By name, as `connect --engine` knows them; without statements it does not."""

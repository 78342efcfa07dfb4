-- Commits by Iceberg's Java client, by which a repetition of one is recognised.
CREATE TABLE modak.mirror_engine_commits (
    location        text        PRIMARY KEY,
    committed_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_engine_commits IS 'Metadata files that Iceberg''s Java client has made current in the last day';

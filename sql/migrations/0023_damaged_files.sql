-- Files of change feeds and of kept moments that were lost or damaged when the pump looked last.
ALTER TABLE modak.change_feeds ADD COLUMN damaged_files text[] NOT NULL DEFAULT '{}';
ALTER TABLE modak.moment_tables ADD COLUMN damaged_files text[] NOT NULL DEFAULT '{}';

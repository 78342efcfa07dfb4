-- Columns that the user left out at register (mirror_pump/source/relations/column_choices.py).
ALTER TABLE modak.mirror_tables ADD COLUMN excluded jsonb NOT NULL DEFAULT '[]';

-- Every publish updates these rows, which may take a kilobyte or two. In pages that may be filled to the end, PostgreSQL makes room
-- for a new version only if less than a tenth of the page is free. Rows that fit no more although there is more than that go on to
-- a new page each time, so that the table grows, and each publish takes longer than the one before, until a vacuum.
ALTER TABLE modak.mirror_tables SET (fillfactor = 50);
ALTER TABLE modak.iceberg_tables SET (fillfactor = 50);

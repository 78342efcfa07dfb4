-- A table with heap retention (seam, retire): acct's columns and values, in partitions by its key.

CREATE TABLE public.aging (
    id      bigint,
    branch  int,
    balance numeric(14,2),
    note    text,
    updated timestamptz
) PARTITION BY RANGE (id);

-- Rows with the keys step, 2 * step .. n * step.
CREATE PROCEDURE public.bench_age(n bigint, step bigint) LANGUAGE sql AS $$
    INSERT INTO public.aging
    SELECT i * step, i % 100, (hashint8(i) % 100000000) / 100.0, md5(i::text) || left(md5((i + 1)::text), 8),
           timestamptz '2024-01-01 00:00:00+00' + i * interval '1.000137 s'
      FROM generate_series(1, n) i;
$$;

-- Corrections of rows below `edge`: `n` keys spread over them, of which every tenth is deleted and the others updated.
CREATE PROCEDURE public.bench_correct(n bigint, edge bigint) LANGUAGE plpgsql AS $$
DECLARE
    apart bigint := (edge - 1) / n;
BEGIN
    UPDATE public.aging SET balance = balance + 1, note = note || '!'
     WHERE id = ANY (ARRAY(SELECT apart * i FROM generate_series(1, n) i WHERE i % 10 <> 0));
    DELETE FROM public.aging
     WHERE id = ANY (ARRAY(SELECT apart * i FROM generate_series(1, n) i WHERE i % 10 = 0));
END $$;

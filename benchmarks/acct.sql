-- The benchmarks' table, and the changes that they make to it.

CREATE TABLE public.acct (
    id      bigint PRIMARY KEY,
    branch  int,
    balance numeric(14,2),
    note    text,
    updated timestamptz
);

-- Rows first + 1 .. first + n, in one statement.
CREATE PROCEDURE public.bench_load(first bigint, n bigint) LANGUAGE sql AS $$
    INSERT INTO public.acct
    SELECT i, i % 100, (hashint8(i) % 100000000) / 100.0, md5(i::text) || left(md5((i + 1)::text), 8),
           timestamptz '2024-01-01 00:00:00+00' + i * interval '1.000137 s'
      FROM generate_series(first + 1, first + n) i;
$$;

-- Ten changes: five updates of random rows among the first `n`, four inserts and a delete, mixed. `number` makes the
-- inserted and the deleted keys unique; every fortieth row is for the deletes alone, so that each change finds its row
-- and the count is exact. 7919 is a prime: the deletes come in no order, and no key twice within n / 40 calls.
CREATE FUNCTION public.bench_ten(number bigint, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    key bigint;
    fresh bigint;
BEGIN
    FOR step IN 0..4 LOOP
        key := 1 + floor(random() * n);
        key := key - CASE WHEN key % 40 = 0 THEN 1 ELSE 0 END;
        UPDATE public.acct SET balance = balance + (random() * 1000)::numeric(14,2), updated = clock_timestamp()
         WHERE id = key;
        IF step < 4 THEN
            fresh := n + number * 4 + step + 1;
            INSERT INTO public.acct
            VALUES (fresh, fresh % 100, (random() * 1000000)::numeric(14,2),
                    md5(fresh::text) || left(md5((fresh + 1)::text), 8), clock_timestamp());
        ELSE
            DELETE FROM public.acct WHERE id = 40 * (1 + number * 7919 % (n / 40));
        END IF;
    END LOOP;
END $$;

-- `changes` changes, a hundred in a transaction.
CREATE PROCEDURE public.bench_changes(changes bigint, n bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR number IN 0..changes / 10 - 1 LOOP
        PERFORM public.bench_ten(number, n);
        IF number % 10 = 9 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;

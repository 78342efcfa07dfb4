-- A table of many narrow rows, and updates of random ones (resolve).

CREATE TABLE public.big (id bigint NOT NULL, n int NOT NULL);

-- Ten updates of random rows among the first `n`. `number` is not needed: no row is made or deleted.
CREATE FUNCTION public.bench_ten_updates(number bigint, n bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE public.big SET n = big.n + 1
     WHERE id = ANY (ARRAY(SELECT 1 + floor(random() * $2)::bigint FROM generate_series(1, 10)));
$$;

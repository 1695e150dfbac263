"""The functions that SQL may call. They depend on their arguments only, and a short query cannot make them produce a
large value (so no `repeat`, `lpad`, `range` as a value, `printf` or `list_resize`).
"""

from typing import Final

_TYPES: Final = (
    "bigint blob bool boolean char date decimal double float float4 float8 hugeint int int1 int2 int4 int8 "
    "integer interval json list long map numeric real row short smallint string struct text time timestamp "
    "timestamp_ms timestamp_ns timestamp_s timestamptz tinyint ubigint uinteger usmallint utinyint uuid varchar"
)

TYPES: Final = frozenset(_TYPES.split()) | {"timestamp with time zone"}
"""Types that a value may be cast to: no arrays of fixed length, as the declared length alone takes memory, and none
whose values Arrow cannot hold as they are (`bit`, `uhugeint`, times of a day with a zone)."""

TABLE_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest"})

_OPERATORS: Final = (
    "!= !~~ !~~* % & * ** + - ->> -> / // < << <= <> = == > >= >> @ ^ ^@ | || ~ ~~ ~~* ~~~ !__postfix __between"
)
_NUMBERS: Final = (
    "abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide even "
    "exp floor gcd greatest greatest_common_divisor isfinite isinf isnan lcm least least_common_multiple ln log "
    "log10 log2 mod multiply pi pow power radians random round round_even sign signbit sin sinh sqrt subtract tan "
    "tanh trunc xor"
)
_TEXT: Final = (
    "ascii bit_length char_length character_length chr concat concat_ws contains damerau_levenshtein ends_with "
    "hamming hash hex instr jaccard jaro_similarity jaro_winkler_similarity lcase left len length levenshtein "
    "like_escape ilike_escape not_like_escape not_ilike_escape lower ltrim md5 mismatches ord position prefix "
    "regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace replace "
    "reverse right rtrim sha256 split split_part starts_with str_split string_split string_split_regex "
    "strip_accents strlen strpos substr substring suffix to_base64 to_hex translate trim ucase unicode upper "
    "format_bytes"
)
_TIMES: Final = (
    "age century current_date current_localtime current_localtimestamp date_diff date_part date_sub date_trunc "
    "datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear decade epoch epoch_ms "
    "epoch_ns epoch_us era get_current_timestamp hour isodow isoyear last_day make_date make_time make_timestamp "
    "make_timestamp_ms make_timestamp_ns microsecond millisecond minute month monthname nanosecond now quarter "
    "second strftime strptime time_bucket to_days to_hours to_microseconds to_milliseconds to_minutes to_months "
    "to_seconds to_timestamp to_weeks to_years today try_strptime week weekday weekofyear year yearweek"
)
_NESTED: Final = (
    "array_contains array_distinct array_extract array_length array_position array_slice array_sort array_unique "
    "cardinality element_at flatten list_concat list_contains list_distinct list_element list_extract list_filter "
    "list_has list_indexof list_intersect list_position list_reverse_sort list_slice list_sort list_transform "
    "list_unique list_value list_zip map map_entries map_extract map_extract_value map_from_entries map_keys "
    "map_values row struct_extract struct_pack unnest array_transform array_filter array_value"
)
_JSON: Final = (
    "json_array json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text "
    "json_extract_string json_keys json_object json_type json_valid json_value to_json"
)
_OTHER: Final = "coalesce if ifnull nullif typeof gen_random_uuid uuid"
_AGGREGATES: Final = (
    "any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_min "
    "arg_min_null argmax argmin array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count count_if "
    "count_star countif covar_pop covar_samp entropy favg first fsum group_concat histogram kahan_sum kurtosis "
    "last list listagg mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc "
    "regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy "
    "reservoir_quantile sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan var_pop var_samp "
    "variance"
)
_WINDOWS: Final = (
    "row_number rank dense_rank rank_dense percent_rank cume_dist ntile lag lead first_value last_value "
    "nth_value fill"
)

FUNCTIONS: Final = frozenset(
    " ".join((_OPERATORS, _NUMBERS, _TEXT, _TIMES, _NESTED, _JSON, _OTHER, _AGGREGATES, _WINDOWS)).split()
)

# One file, five targets: operator, fleet, echo, sink, agent. `make images` builds them with whatever builder is there.
# amd64 and arm64; nothing below names an architecture.
FROM debian:bookworm-slim AS build
ENV PYTHONDONTWRITEBYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=0 UV_LINK_MODE=copy UV_NO_CACHE=1
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /uv && /uv/bin/python -m pip install --quiet --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY common common
COPY operator operator
COPY fleet fleet
COPY agent agent
COPY echo echo
COPY analyze analyze
# Modules are compiled here, for nothing can write beside them later and compiling is half of a start; by hash, so that
# the same sources give the same files.
# The versions of the lock without the hashes of other platforms' files; the wheel brings every package of ours, each
# image only the dependencies of its own extra (the agent's also its MCP server's, Fleet's its log's, Echo's those of its
# tables and its stream).
RUN grep -E '^[A-Za-z0-9]' requirements.lock | sed 's/ *\\$//' > /constraints.txt \
 && /uv/bin/uv build --quiet --wheel --python /usr/bin/python3 --out-dir /wheel . \
 && for name in operator fleet echo sink agent; do \
      extra="$name"; [ "$name" = agent ] && extra=agent,agent-mcp; [ "$name" = fleet ] && extra=fleet,fleet-log; \
      [ "$name" = echo ] && extra=echo,echo-source; \
      /uv/bin/uv venv --quiet --python /usr/bin/python3 "/env/$name/opt/ingero" \
      && /uv/bin/uv pip install --quiet --python "/env/$name/opt/ingero/bin/python" --constraint /constraints.txt \
           "$(ls /wheel/*.whl)[$extra]" \
      && find "/env/$name" \( -name __pycache__ -o -name uv_cache.json \) -prune -exec rm -rf {} + \
      && sed -i '/uv_cache\.json,/d' "/env/$name"/opt/ingero/lib/python3*/site-packages/ingero-*.dist-info/RECORD \
      && "/env/$name/opt/ingero/bin/python" -m compileall -q --invalidation-mode unchecked-hash \
           -s "/env/$name" -p / "/env/$name/opt/ingero/lib" \
      && sed -i "1s|^#!.*|#!/opt/ingero/bin/python|" "/env/$name"/opt/ingero/bin/ingero-* || exit 1; \
    done

FROM debian:bookworm-slim AS runtime
ENV PATH=/opt/ingero/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC
RUN apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/*
USER 65532:65532
WORKDIR /

FROM runtime AS operator
COPY --from=build /env/operator/opt /opt
ENTRYPOINT ["/opt/ingero/bin/ingero-operator"]

FROM runtime AS fleet
COPY --from=build /env/fleet/opt /opt
ENTRYPOINT ["/opt/ingero/bin/ingero-fleet"]
CMD ["serve"]

FROM runtime AS echo
COPY --from=build /env/echo/opt /opt
ENTRYPOINT ["/opt/ingero/bin/ingero-echo"]

FROM runtime AS sink
COPY --from=build /env/sink/opt /opt
ENTRYPOINT ["/opt/ingero/bin/ingero-sink"]

# The only one with more than Python: libbpf loads the eBPF programs that the wheel brings.
FROM runtime AS agent
USER 0:0
RUN apt-get update && apt-get install -y --no-install-recommends libbpf1 \
 && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/*
USER 65532:65532
COPY --from=build /env/agent/opt /opt
ENTRYPOINT ["/opt/ingero/bin/ingero-agent"]

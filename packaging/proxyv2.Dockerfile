# Istio's proxy image with footman in place of pilot-agent: what an unchanged injection template runs.
#   docker build -f packaging/proxyv2.Dockerfile --build-arg ISTIO=1.31.0 -t registry.example.com/proxyv2:1.31.0-footman .
ARG ISTIO=1.31.0
FROM docker.io/istio/proxyv2:${ISTIO}
ARG TARGET=x86_64-unknown-linux-musl
COPY --chmod=755 target/${TARGET}/release/footman /usr/local/bin/pilot-agent

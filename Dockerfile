# docker build -t epe_jax . && docker run --rm -v "$PWD/runs:/work/runs" epe_jax
# With GPUs: --build-arg EXTRAS=training,reports,cuda, and docker run --gpus=all.
FROM python:3.12-slim
ARG EXTRAS=training,reports
WORKDIR /sources
COPY pyproject.toml setup.py README.md LICENSE ./
COPY configs configs
COPY epe_jax epe_jax
RUN pip install --no-cache-dir ".[$EXTRAS]"
WORKDIR /work
ENTRYPOINT ["epe-jax"]
CMD ["run", "digits"]

// Draws /dashboard.json over the time range of the page's address (?start=…&end=…, Unix seconds).
// When everything is drawn, window.panels lists the panels: title, type, whether it has data, and
// the error of its queries.

import { dateTime, EventBusSrv } from '@grafana/data';
import { GlobalStyles, PanelChrome, PanelContextProvider, ThemeContext } from '@grafana/ui';
import { Component } from 'react';
import { createRoot } from 'react-dom/client';
import { flushSync } from 'react-dom';
import { prepare, theme } from './fields';
import { Drawing, hasData } from './panels';
import { queryPanel, readScrapeInterval, readVariables } from './prometheus';

const rowHeight = 30;
const gap = 8;

// Shows an error in the place of the panel that raised it.
class Guard extends Component {
  state = { error: null };

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    this.props.report.error = `${error.message}\n${error.stack}`;
  }

  render() {
    return this.state.error ? <pre>{String(this.state.error)}</pre> : this.props.children;
  }
}

function Panel({ loaded, range, column }) {
  const { panel, frames, report } = loaded;
  const { x, y, w, h } = panel.gridPos;
  const width = w * column - gap;
  const height = h * (rowHeight + gap) - gap;
  const style = { position: 'absolute', left: x * column + gap, top: y * (rowHeight + gap) + gap, width, height };
  if (panel.type === 'row') {
    return <div className="row" style={style}>⌄ {panel.title}</div>;
  }
  return (
    <div style={style}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(innerWidth, innerHeight) =>
          report.hasData ? (
            <Guard report={report}>
              <Drawing panel={panel} frames={frames} width={innerWidth} height={innerHeight} range={range} />
            </Guard>
          ) : (
            <div className="empty">{report.error ?? panel.fieldConfig.defaults.noValue ?? 'No data'}</div>
          )
        }
      </PanelChrome>
    </div>
  );
}

async function load(panel, variables, range) {
  const report = { title: panel.title, type: panel.type, hasData: true };
  let frames = [];
  if (panel.type !== 'row') {
    try {
      frames = await prepare(panel, await queryPanel(panel, variables, range));
      report.hasData = hasData(frames);
    } catch (error) {
      report.hasData = false;
      report.error = error.message;
    }
  }
  return { panel, frames, report };
}

// Waits until no element has changed for ten frames: charts measure themselves before they draw.
async function untilStable(element) {
  let quiet = 0;
  const observer = new MutationObserver(() => (quiet = 0));
  observer.observe(element, { attributes: true, childList: true, subtree: true });
  while (quiet++ < 10) {
    await new Promise(requestAnimationFrame);
  }
  observer.disconnect();
}

async function main() {
  const parameters = new URLSearchParams(location.search);
  const range = { start: Number(parameters.get('start')), end: Number(parameters.get('end')) };
  // Grafana's definitions of the step and of $__rate_interval.
  const scrapeInterval = await readScrapeInterval();
  range.step = Math.max(Math.ceil((range.end - range.start) / 240), scrapeInterval);
  range.rateInterval = Math.max(range.step + scrapeInterval, 4 * scrapeInterval);
  range.start -= range.start % range.step;
  const timeRange = { from: dateTime(range.start * 1000), to: dateTime(range.end * 1000) };
  timeRange.raw = { from: timeRange.from, to: timeRange.to };

  const dashboard = await (await fetch('/dashboard.json')).json();
  const variables = await readVariables(dashboard.templating.list, range);
  const loaded = [];
  for (const panel of dashboard.panels) {
    loaded.push(await load(panel, variables, range));
  }
  const page = document.getElementById('page');
  const column = (page.clientWidth - gap) / 24;
  const bottom = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h));
  page.style.height = `${bottom * (rowHeight + gap) + 60}px`;
  flushSync(() =>
    createRoot(page).render(
      <ThemeContext.Provider value={theme}>
        <PanelContextProvider value={{ eventsScope: 'preview', eventBus: new EventBusSrv() }}>
          <GlobalStyles />
          <h1>{dashboard.title}</h1>
          <div className="grid">
            {loaded.map((one) => <Panel key={one.panel.id} loaded={one} range={timeRange} column={column} />)}
          </div>
        </PanelContextProvider>
      </ThemeContext.Provider>
    )
  );
  await untilStable(page);
  window.panels = loaded.map(({ report }) => report).filter(({ type }) => type !== 'row');
}

main().catch((error) => {
  window.failure = error.stack;
});
